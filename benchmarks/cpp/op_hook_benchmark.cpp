// The cost of the op hook: each op with the hook off (0), on (1), watched like a primary with known ops (2), and with
// every op timed (3), on one thread. benchmarks/hook.py runs it with random interleaving and compares the medians.
#include <ATen/Parallel.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>

#include <optional>

#include "hooked_job.h"

namespace torchshare {
namespace {

template <class Op>
void measure(benchmark::State& state, Op op) {
  at::set_num_threads(1);
  NeverStopped job(state.range(0));
  std::optional<ContextScope> hook;
  if (state.range(0) != kOff) {
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

BENCHMARK(hot)->ArgName("hook")->DenseRange(kOff, kTimed);
BENCHMARK(view)->ArgName("hook")->DenseRange(kOff, kTimed);
BENCHMARK(boxed)->ArgName("hook")->DenseRange(kOff, kTimed);
BENCHMARK(random)->ArgName("hook")->DenseRange(kOff, kTimed);
BENCHMARK(tiny_conv2d)->ArgName("hook")->DenseRange(kOff, kTimed);

}  // namespace
}  // namespace torchshare

BENCHMARK_MAIN();
