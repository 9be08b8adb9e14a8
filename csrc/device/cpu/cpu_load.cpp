#include "device/cpu/cpu_load.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>
#include <thread>

namespace torchshare {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kWindow{100};
constexpr std::chrono::seconds kValid{10};

cpu_set_t allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(getpid(), sizeof set, &set);
  return set;
}

nanoseconds used_here() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

bool measure() {
  const cpu_set_t set = allowed_processors();
  const auto used_by_others = [&] {
    std::ifstream file("/proc/stat");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return busy_time(text, set) - used_here();
  };
  const auto begin = steady_clock::now();
  const nanoseconds before = used_by_others();
  std::this_thread::sleep_for(kWindow);
  const nanoseconds used = used_by_others() - before;
  const nanoseconds window = steady_clock::now() - begin;
  return is_busy(static_cast<double>(used.count()) / static_cast<double>(window.count()), CPU_COUNT(&set));
}

}  // namespace

nanoseconds busy_time(const std::string& stat, const cpu_set_t& set) {
  std::istringstream lines(stat);
  std::string line;
  std::int64_t ticks = 0;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (!name.starts_with("cpu") || name == "cpu" || !CPU_ISSET(std::stoul(name.substr(3)), &set)) {
      continue;
    }
    // proc(5): user, nice, system, idle, iowait, irq, softirq
    for (int field = 0; field < 7; ++field) {
      std::int64_t value = 0;
      fields >> value;
      ticks += field == 3 || field == 4 ? 0 : value;
    }
  }
  return nanoseconds(std::chrono::seconds(1)) / sysconf(_SC_CLK_TCK) * ticks;
}

bool is_busy(double others, int processors) {
  return others >= 0.5 && others > processors - 1.5;
}

bool others_are_busy() {
  static std::mutex mutex;  // guards the others
  static steady_clock::time_point valid_until{};
  static bool busy = false;
  std::lock_guard lock(mutex);
  if (steady_clock::now() >= valid_until) {
    busy = measure();
    valid_until = steady_clock::now() + kValid;
  }
  return busy;
}

}  // namespace torchshare
