#include "runtime/forks.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/cpu/child_processes.h"

namespace torchshare {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongest = 2s;
constexpr std::chrono::nanoseconds kComputes = 10ms;
constexpr auto kLookAtThreadsEvery = 100us;

/// False also for a thread that has ended. /proc/PID/stat: the state follows the name, which is in parentheses.
bool runs(const std::string& thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));
  file.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  char state = 'X';
  file >> state;
  return state == 'R' || state == 'D';
}

/// The time that the thread has had a processor; 0 if unknown.
std::chrono::nanoseconds run_time(const std::string& thread) {
  return scheduler_times(thread).value_or(SchedulerTimes{}).ran;
}

void wait_for_sleep() noexcept {
  try {
    const auto until = std::chrono::steady_clock::now() + kLongest;
    const std::string own = std::to_string(gettid());
    std::vector<std::pair<std::string, std::chrono::nanoseconds>> before;
    for_each_thread("self", [&](const std::string& thread) {
      if (thread != own && runs(thread)) {
        before.emplace_back(thread, run_time(thread));
      }
    });
    const auto is_waited_for = [](const auto& entry) {
      const auto& [thread, ran] = entry;
      return runs(thread) && run_time(thread) - ran < kComputes;
    };
    while (std::any_of(before.begin(), before.end(), is_waited_for) && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(kLookAtThreadsEvery);
    }
  } catch (const std::bad_alloc&) {
    // The fork does not wait.
  }
}

}  // namespace

void wait_for_sleep_at_forks() {
  static const int once = pthread_atfork(&wait_for_sleep, nullptr, nullptr);
  (void)once;
}

}  // namespace torchshare
