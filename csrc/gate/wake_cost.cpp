#include "gate/wake_cost.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace torchshare {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr int kWakes = 31;
constexpr auto kAsleep = std::chrono::microseconds(100);  // until then the other is surely waiting

}  // namespace

nanoseconds WakeCost::shortest_gap() const {
  return std::max(100 * notify, 2 * latency);
}

WakeCost measure_wake_cost() {
  std::mutex mutex;  // guards turn, woken_at
  std::condition_variable changed;
  int turn = 0;
  steady_clock::time_point woken_at;
  std::jthread sleeper([&] {
    std::unique_lock lock(mutex);
    for (int wake = 1; wake <= kWakes; ++wake) {
      changed.wait(lock, [&] { return turn == wake; });
      woken_at = steady_clock::now();
      changed.notify_all();
    }
  });
  std::array<nanoseconds, kWakes> notify{};
  std::array<nanoseconds, kWakes> latency{};
  for (int wake = 1; wake <= kWakes; ++wake) {
    std::this_thread::sleep_for(kAsleep);
    std::unique_lock lock(mutex);
    turn = wake;
    woken_at = {};
    lock.unlock();
    const auto begin = steady_clock::now();
    changed.notify_all();
    const auto end = steady_clock::now();
    lock.lock();
    changed.wait(lock, [&] { return woken_at != steady_clock::time_point(); });
    const auto index = static_cast<std::size_t>(wake - 1);
    notify[index] = end - begin;
    latency[index] = woken_at - begin;
  }
  const auto median = [](auto& times) {
    std::nth_element(times.begin(), times.begin() + kWakes / 2, times.end());
    return times[kWakes / 2];
  };
  return {.notify = median(notify), .latency = median(latency)};
}

}  // namespace torchshare
