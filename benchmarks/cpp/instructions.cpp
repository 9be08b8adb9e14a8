// Runs what is on the hot paths, for benchmarks/instructions.py: under callgrind, the instructions of each case are
// dumped under its name. Each case runs some times before it is counted, so that what is done once does not count.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/live_scheduler.h"
#include "hooked_job.h"
#include "memory/cpu_memory.h"
#include "memory/owned_memory.h"
#include "model/request_times.h"

namespace torchshare {
namespace {

constexpr int kBefore = 50;
constexpr int kTimes = 200;

void count(const std::string& name, const std::function<void()>& act) {
  for (int i = 0; i < kBefore; ++i) {
    act();
  }
  CALLGRIND_ZERO_STATS;
  for (int i = 0; i < kTimes; ++i) {
    act();
  }
  static std::list<std::string> names;  // callgrind reads them later
  CALLGRIND_DUMP_STATS_AT(names.emplace_back(fmt::format("{} x{}", name, kTimes)).c_str());
}

void count_ops(const std::string& prefix) {
  at::Tensor x = at::ones({1});
  const at::Tensor square = at::ones({4, 4});
  const at::Tensor image = at::ones({1, 1, 4, 4});
  const at::Tensor kernel = at::ones({1, 1, 2, 2});
  const at::Tensor weight = at::ones({1}).requires_grad_();
  count(prefix + "hot op", [&] { x.add_(x); });
  count(prefix + "view", [&] { square.select(0, 1); });
  count(prefix + "boxed op", [&] { x.erf_(); });
  count(prefix + "random op", [&] { x.uniform_(0, 1); });
  count(prefix + "composite op", [&] { at::conv2d(image, kernel); });
  count(prefix + "forward and backward", [&] { weight.mul(x).sum().backward(); });
}

void count_memory(const std::string& prefix) {
  for (const std::int64_t bytes : {64, 4 << 10, 1 << 20}) {
    count(fmt::format("{}memory of {} B", prefix, bytes), [bytes] { at::empty({bytes}, at::kByte); });
  }
}

void count_requests() {
  RequestTimes times;
  times.promise(0.02);
  std::chrono::nanoseconds now(0);
  count("a request's times", [&] {
    now += std::chrono::milliseconds(3);
    times.answered(now - std::chrono::milliseconds(2), now - std::chrono::milliseconds(1), now);
  });
}

/// A decision where 64 GPUs are full and jobs wait.
void count_decisions() {
  for (const std::string_view policy : {"sjf-bsbf", "pair-srsf"}) {
    const ClusterOptions options{.gpus = 64, .gpus_per_node = 4};
    LiveScheduler scheduler(Cluster(options, Interference(1.25), {}, {}), make_cluster_policy(policy));
    for (int number = 0; number < 200; ++number) {
      const Seconds duration = 600 + 7919 * number % 36'000;
      scheduler.arrive(scheduler.add({.duration = duration, .gpus = 1 << number % 3}, duration), 0);
    }
    Seconds now = 0;
    count(fmt::format("{}: a decision", policy), [&] { scheduler.look(now += 1); });
  }
}

void run() {
  at::set_num_threads(1);
  install_cpu_memory();
  count("nothing", [] {});
  count_memory("plain: ");
  count_ops("plain: ");
  {
    const auto owner =
        std::make_shared<MemoryOwner>(std::make_shared<MemoryBudget>("job", 1 << 30), c10::DeviceType::CPU);
    const MemoryScope scope(owner);
    count_memory("job: ");
  }
  const std::pair<Level, const char*> levels[] = {{kHooked, "job: "}, {kWatched, "watched: "}, {kTimed, "timed: "}};
  for (const auto& [level, prefix] : levels) {
    NeverStopped job(level);
    const ContextScope hook(job);
    count_ops(prefix);
  }
  count_requests();
  count_decisions();
}

}  // namespace
}  // namespace torchshare

int main() {
  torchshare::run();
}
