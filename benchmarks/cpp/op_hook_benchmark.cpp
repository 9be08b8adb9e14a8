// The cost of the op hook: each op with the hook off and on, on one thread. Run with random interleaving, and read the
// difference of the medians: benchmarks/hook.py does both.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <optional>

#include "gate/op_hook.h"

namespace torchshare {
namespace {

class NeverStopped final : public OpContext {
 public:
  NeverStopped() : OpContext(Priority::kPrimary, at::detail::createCPUGenerator(0)) { install_op_hook(); }
  void attend() override {}
};

template <class Op>
void measure(benchmark::State& state, Op op) {
  at::set_num_threads(1);
  NeverStopped job;
  std::optional<ContextScope> hook;
  if (state.range(0) == 1) {
    hook.emplace(job);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(op());
  }
}

void hot(benchmark::State& state) {
  at::Tensor x = at::ones({1});
  measure(state, [&] { return x.add_(x); });
}

void view(benchmark::State& state) {
  const at::Tensor x = at::ones({4, 4});
  measure(state, [&] { return x.select(0, 1); });
}

void boxed(benchmark::State& state) {
  at::Tensor x = at::ones({1});
  measure(state, [&] { return x.erf_(); });
}

void random(benchmark::State& state) {
  at::Tensor x = at::ones({1});
  measure(state, [&] { return x.uniform_(0, 1); });
}

void tiny_conv2d(benchmark::State& state) {
  const at::Tensor x = at::ones({1, 1, 4, 4});
  const at::Tensor w = at::ones({1, 1, 2, 2});
  measure(state, [&] { return at::conv2d(x, w); });
}

BENCHMARK(hot)->ArgName("hook")->Arg(0)->Arg(1);
BENCHMARK(view)->ArgName("hook")->Arg(0)->Arg(1);
BENCHMARK(boxed)->ArgName("hook")->Arg(0)->Arg(1);
BENCHMARK(random)->ArgName("hook")->Arg(0)->Arg(1);
BENCHMARK(tiny_conv2d)->ArgName("hook")->Arg(0)->Arg(1);

}  // namespace
}  // namespace torchshare

BENCHMARK_MAIN();
