#pragma once

#include <sched.h>

#include <chrono>
#include <string>

namespace torchshare {

/// Processor time, since the machine was started, that all processes have used on the processors of `set`, from the
/// text of /proc/stat.
std::chrono::nanoseconds busy_time(const std::string& stat, const cpu_set_t& set);

/// True if a further thread would have to share a processor: others use `others` of `processors`, and the primary one.
bool is_busy(double others, int processors);

/// True if other processes keep the processors busy on which this one may run. Measured for 100 ms, at most once in 10
/// s; waits meanwhile. Any thread.
bool others_are_busy();

}  // namespace torchshare
