// Two training jobs in one process, without Python: a LibTorch loop as the primary, and as the secondary another loop,
// or a step written by `CompiledStep.save`.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>

#include "torchshare/compiled_step.h"
#include "torchshare/runtime.h"

namespace {

using torchshare::Job;

constexpr int kSteps = 200;

void report(const Job& job, double first, double last) {
  fmt::print("{:10} {:10} loss {:.4f} -> {:.4f}\n", job.spec().name, to_string(job.spec().priority), first, last);
}

/// Fits a line with plain ATen; torch::nn and torch::optim work as well.
void fit_a_line(Job& job) {
  const at::Tensor x = at::randn({64, 8}), y = x.matmul(at::randn({8, 1}));
  at::Tensor weight = at::zeros({8, 1}).requires_grad_();
  double first = 0, last = 0;
  for (int i = 0; i < kSteps; ++i) {
    job.begin_step();
    const at::Tensor loss = at::mse_loss(x.matmul(weight), y);
    loss.backward();
    {
      const at::NoGradGuard no_grad;
      weight.sub_(0.05 * weight.grad());
      weight.mutable_grad().zero_();
    }
    last = loss.item<double>();
    first = i == 0 ? last : first;
    job.end_step();
  }
  report(job, first, last);
}

/// Trains on the example batch that was saved with the step.
void run_a_packaged_step(Job& job, const std::string& folder) {
  torchshare::BoundPackage package = torchshare::load_package(folder);
  const std::vector<at::Tensor> batch = package.example;
  const torchshare::CompiledStep step({std::move(package)}, {}, std::nullopt, {}, at::ones({}, at::kDouble));
  const auto losses = run_steps(job, step, std::vector<std::vector<torchshare::Piece>>(kSteps, {{batch, 1.0}}));
  report(job, losses.front().item<double>(), losses.back().item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  torchshare::Runtime runtime(torchshare::make_device("cpu"));
  runtime.submit({.name = "line", .priority = torchshare::Priority::kPrimary}, fit_a_line);
  const auto second = runtime.submit({.name = "second"},
                                     [&](Job& job) { argc > 1 ? run_a_packaged_step(job, argv[1]) : fit_a_line(job); });
  runtime.start();
  runtime.wait(std::chrono::minutes(1));
  if (second->state() != torchshare::JobState::kFinished) {
    fmt::print(stderr, "'second' {}: {}\n", to_string(second->state()), second->error());
    return EXIT_FAILURE;
  }
}
