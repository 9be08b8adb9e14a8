#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torchshare {

class Job;
class StepPackage;

/// The properties of a tensor that compiled code depends on.
class TensorSpec {
 public:
  /// `any_rows`: the code does not depend on the size of the first dimension.
  explicit TensorSpec(const at::Tensor& tensor, bool any_rows = false);
  bool matches(const at::Tensor& tensor) const;
  bool any_rows() const { return any_rows_; }
  /// "Float[32, 10] strides [10, 1] cpu"; with any rows, "Float[*, 10] strides [10, 1] cpu"
  std::string text() const;

 private:
  bool any_rows_;
  at::ScalarType dtype_;
  c10::DeviceType device_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

/// Random numbers among the inputs of a package, drawn from the job's own generator before each run.
struct Noise {
  enum class Kind { kBernoulli, kUniform, kNormal, kDropout };  ///< their order is part of saved steps
  at::Tensor tensor;
  Kind kind;
  double first;   ///< probability, lower end, or mean
  double second;  ///< -, upper end, or standard deviation
};

/// A sub-batch: the tensors of its rows and its weight in the batch's loss.
struct Piece {
  std::vector<at::Tensor> data;
  double weight = 1.0;
};

/// A package and the user's tensors that it is bound to: its inputs are `bound`, the noise, and the data.
struct BoundPackage {
  std::shared_ptr<StepPackage> package;
  std::vector<at::Tensor> bound;  ///< and the noise
  std::vector<Noise> noise;
  std::vector<at::Tensor> example;  ///< of the data
  std::vector<at::Tensor> counts;   ///< of `bound`: numbers of steps that the package reads, increased when it has run
  std::vector<TensorSpec> data;

  /// `counts`: indices of tensors of `bound`. Throws std::invalid_argument if the package was compiled for other
  /// inputs.
  BoundPackage(std::shared_ptr<StepPackage> package, std::vector<at::Tensor> bound, std::vector<Noise> noise,
               std::vector<at::Tensor> example, const std::vector<std::size_t>& counts = {});
  bool takes(const std::vector<at::Tensor>& data) const;
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& data = {}) const;
};

/// Loads a package with its tensors, written to `folder` by `CompiledStep.save` in Python. Throws
/// std::invalid_argument.
BoundPackage load_package(const std::string& folder);

/// A training step that runs without the interpreter. See Note [Compiled steps]. One thread at a time.
class CompiledStep {
 public:
  /// `whole`: forward, backward and update of a batch in one package, one per known shape.
  /// `gradients`: forward and backward of a sub-batch into the accumulators, with its loss times `weight`, one of its
  /// bound tensors (one double). `update`: updates from the accumulators, and clears them.
  CompiledStep(std::vector<BoundPackage> whole, std::vector<BoundPackage> gradients, std::optional<BoundPackage> update,
               std::vector<at::Tensor> accumulators, at::Tensor weight);

  /// True if there is a package for each of the pieces.
  bool covers(const std::vector<Piece>& pieces) const;
  /// Runs one step and returns the batch's loss. Throws std::invalid_argument, before any change, for sub-batches that
  /// have no package. If `job` is null, no sub-batches are counted.
  at::Tensor run(Job* job, const std::vector<Piece>& pieces) const;

 private:
  at::Tensor run_pieces(const std::vector<Piece>& pieces, Job* job) const;

  const std::vector<BoundPackage> whole_;
  const std::vector<BoundPackage> gradients_;
  const std::optional<BoundPackage> update_;
  const std::vector<at::Tensor> accumulators_;
  const at::Tensor weight_;
};

/// Trains `job` on the batches, one step each, and returns their losses. On the job's own thread.
std::vector<at::Tensor> run_steps(Job& job, const CompiledStep& step, const std::vector<std::vector<Piece>>& batches);

}  // namespace torchshare
