#include "torchshare/compiled_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "compiled/step_package.h"
#include "torchshare/job.h"

namespace torch {
// torch/serialize.h declares it, too, and includes all of torch's JIT compiler.
TORCH_API c10::IValue pickle_load(const std::vector<char>& data);
}  // namespace torch

// Note [Compiled steps]
// A step of small ops spends its time in the interpreter and the dispatcher, and two such jobs in one process contend
// for the GIL. Here the whole step is one or a few calls of compiled code: AOTInductor packages, made in Python from
// the user's own model, loss function and optimizer. Parameters, buffers and optimizer state are inputs that the code
// updates in place, so they stay the user's own objects; learning rates are inputs as well.
//
// A batch in one piece runs one package (`whole`). A batch in several runs `gradients` for each piece and then
// `update`; splitting changes only the order of additions. To the gate each of these calls is one op: a job waits,
// parks and is cancelled between them. If `update` is not reached, the batch has changed nothing but the accumulators.
//
// `run_steps` is the C++ half of torchshare/context/step_loop.py: it begins and ends the steps that run without Python.
//
// Compiled code would draw random numbers from the process's default generator. So a package takes its noise as inputs:
// eager ops fill them from the job's own generator before it runs, in the same order.

namespace torchshare {
namespace {

const BoundPackage* find(const std::vector<BoundPackage>& packages, const Piece& piece) {
  const auto found = std::find_if(packages.begin(), packages.end(),
                                  [&](const BoundPackage& package) { return package.takes(piece.data); });
  return found != packages.end() ? &*found : nullptr;
}

bool is_whole(const std::vector<Piece>& pieces) {
  return pieces.size() == 1 && pieces.front().weight == 1.0;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& list) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : list.toListRef()) {
    tensors.push_back(value.toTensor());
  }
  return tensors;
}

/// Calls `run` as a sub-batch of `job`, if there is one.
template <class Run>
at::Tensor counted(Job* job, Run run) {
  if (job == nullptr) {
    return run();
  }
  job->begin_sub_batch();
  at::Tensor loss = run();
  job->end_sub_batch();
  return loss;
}

}  // namespace

BoundPackage::BoundPackage(std::shared_ptr<StepPackage> the_package, std::vector<at::Tensor> the_bound,
                           std::vector<Noise> the_noise, std::vector<at::Tensor> the_example,
                           const std::vector<std::size_t>& the_counts)
    : package(std::move(the_package)),
      bound(std::move(the_bound)),
      noise(std::move(the_noise)),
      example(std::move(the_example)),
      data(example.begin(), example.end()) {
  for (const std::size_t index : the_counts) {
    counts.push_back(bound.at(index));
  }
  for (const Noise& each : noise) {
    bound.push_back(each.tensor);
  }
  package->specs(joined(bound, example));
}

bool BoundPackage::takes(const std::vector<at::Tensor>& tensors) const {
  return std::equal(data.begin(), data.end(), tensors.begin(), tensors.end(),
                    [](const TensorSpec& spec, const at::Tensor& tensor) { return spec.matches(tensor); });
}

std::vector<at::Tensor> BoundPackage::run(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> outputs = package->run(joined(bound, tensors), noise, counts);
  for (const at::Tensor& tensor : bound) {
    tensor.unsafeGetTensorImpl()->bump_version();  // so that autograd notices if a saved tensor was changed
  }
  return outputs;
}

BoundPackage load_package(const std::string& folder) {
  const std::string path = folder + "/tensors.pt";
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty()) {
    throw std::invalid_argument("'" + path + "' cannot be read; the folder must be written by CompiledStep.save");
  }
  const auto saved = torch::pickle_load(bytes).toGenericDict();
  const at::Tensor draws = saved.at("draws").toTensor();
  std::vector<Noise> noise;
  for (const at::Tensor& tensor : tensors_of(saved.at("noise"))) {
    const at::Tensor row = draws[static_cast<std::int64_t>(noise.size())];
    noise.push_back(
        {tensor, static_cast<Noise::Kind>(row[0].item<double>()), row[1].item<double>(), row[2].item<double>()});
  }
  std::vector<std::size_t> counts;
  if (saved.contains("counts")) {  // not in what 0.1.0 wrote
    for (const c10::IValue& index : saved.at("counts").toListRef()) {
      counts.push_back(static_cast<std::size_t>(index.toInt()));
    }
  }
  return {std::make_shared<StepPackage>(folder + "/step.pt2"), tensors_of(saved.at("bound")), std::move(noise),
          tensors_of(saved.at("data")), counts};
}

CompiledStep::CompiledStep(std::vector<BoundPackage> whole, std::vector<BoundPackage> gradients,
                           std::optional<BoundPackage> update, std::vector<at::Tensor> accumulators, at::Tensor weight)
    : whole_(std::move(whole)),
      gradients_(std::move(gradients)),
      update_(std::move(update)),
      accumulators_(std::move(accumulators)),
      weight_(std::move(weight)) {
  if (weight_.numel() != 1 || weight_.scalar_type() != at::kDouble) {
    throw std::invalid_argument("weight must be a tensor of one double");
  }
}

bool CompiledStep::covers(const std::vector<Piece>& pieces) const {
  const auto& packages = is_whole(pieces) ? whole_ : gradients_;
  return !pieces.empty() && (is_whole(pieces) || update_.has_value()) &&
         std::all_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return find(packages, piece) != nullptr; });
}

at::Tensor CompiledStep::run(Job* job, const std::vector<Piece>& pieces) const {
  if (!covers(pieces)) {
    throw std::invalid_argument("the compiled step has no package for these shapes");
  }
  if (is_whole(pieces)) {
    return counted(job, [&] { return find(whole_, pieces.front())->run(pieces.front().data).at(0); });
  }
  try {
    return run_pieces(pieces, job);
  } catch (...) {  // cancelled between two pieces: their gradients must not reach the next update
    for (const at::Tensor& accumulator : accumulators_) {
      accumulator.zero_();
    }
    throw;
  }
}

at::Tensor CompiledStep::run_pieces(const std::vector<Piece>& pieces, Job* job) const {
  const at::NoGradGuard no_grad;
  at::Tensor total;
  for (const Piece& piece : pieces) {
    const at::Tensor loss = counted(job, [&] {
      weight_.fill_(piece.weight);
      return find(gradients_, piece)->run(piece.data).at(0);
    });
    total = total.defined() ? total.add(loss) : loss;
  }
  update_->run();
  return total;
}

std::vector<at::Tensor> run_steps(Job& job, const CompiledStep& step, const std::vector<std::vector<Piece>>& batches) {
  std::vector<at::Tensor> losses;
  losses.reserve(batches.size());
  for (const std::vector<Piece>& batch : batches) {
    job.yield_point();
    job.begin_step();
    losses.push_back(step.run(&job, batch));
    job.end_step();
  }
  return losses;
}

}  // namespace torchshare
