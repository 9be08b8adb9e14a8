#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace torchshare {

/// The name of a thread, which threads and processes that it starts inherit until they name themselves or run another
/// program. `process`: its number, or "self".
std::string name_of_thread(const std::string& process, const std::string& thread);

struct SchedulerTimes {
  std::chrono::nanoseconds ran;     ///< on a processor
  std::chrono::nanoseconds waited;  ///< ready to run, while other threads had the processors
};

/// Times of a thread of this process. Empty if it has ended, or if the kernel does not keep them.
std::optional<SchedulerTimes> scheduler_times(const std::string& thread);

/// Visits the threads of a process by their kernel's id, as text. `process`: its number, or "self".
void for_each_thread(const std::string& process, const std::function<void(const std::string&)>& visit);

/// True if a thread of this process has started a process that has not been waited for.
bool has_children(const std::string& thread);

/// Visits all threads of the processes that a thread of this process has started, and of those that they have started
/// in turn. Where the kernel does not list them (CONFIG_PROC_CHILDREN), visits none.
void for_each_thread_of_children(const std::string& thread, const std::function<void(int)>& visit);

/// The same for processes that a thread of the given name has started and that another thread has taken over since,
/// because it has ended. They are found while they have its name.
void for_each_thread_of_orphans(const std::string& name, const std::function<void(int)>& visit);

}  // namespace torchshare
