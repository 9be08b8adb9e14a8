#include "gate/wake_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "device/event_count.h"
#include "model/time.h"

namespace torchshare {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kWakes = 31;
constexpr auto kAsleep = std::chrono::microseconds(100);  // by then the other thread is asleep

}  // namespace

nanoseconds WakeCost::shortest_gap() const {
  return std::max(100 * notify, 2 * latency);
}

WakeCost measure_wake_cost() {
  EventCount turn;   // counts wakes
  EventCount woken;  // counts answers
  std::array<steady_clock::time_point, kWakes> woken_at;
  const auto wait_for = [](EventCount& count, std::uint32_t value) {
    while (count.value() < value) {
      count.wait(value - 1, kNever);
    }
  };
  const auto sleep = [&] {
    for (std::uint32_t wake = 1; wake <= kWakes; ++wake) {
      wait_for(turn, wake);
      woken_at[wake - 1] = steady_clock::now();
      woken.notify_all();
    }
  };
  std::jthread sleeper;
  try {
    sleeper = std::jthread(sleep);
  } catch (const std::system_error& error) {
    throw std::runtime_error(
        fmt::format("the thread that measures the cost of a wake cannot be created: {}", error.what()));
  }
  std::array<nanoseconds, kWakes> notify{};
  std::array<nanoseconds, kWakes> latency{};
  for (std::uint32_t wake = 1; wake <= kWakes; ++wake) {
    std::this_thread::sleep_for(kAsleep);
    const auto begin = steady_clock::now();
    turn.notify_all();
    const auto end = steady_clock::now();
    wait_for(woken, wake);
    notify[wake - 1] = end - begin;
    latency[wake - 1] = woken_at[wake - 1] - begin;
  }
  const auto median = [](auto& times) {
    std::nth_element(times.begin(), times.begin() + kWakes / 2, times.end());
    return times[kWakes / 2];
  };
  return {.notify = median(notify), .latency = median(latency)};
}

}  // namespace torchshare
