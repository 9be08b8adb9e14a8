#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torchshare {

class Job;
class StepPackage;

/// Everything of a tensor that compiled code relies on.
class TensorSpec {
 public:
  explicit TensorSpec(const at::Tensor& tensor);
  bool matches(const at::Tensor& tensor) const;
  /// "Float[32, 10] strides [10, 1] cpu"
  std::string text() const;

 private:
  at::ScalarType dtype_;
  c10::DeviceType device_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

/// Random numbers among the inputs of a graph: drawn anew, from the job's own generator, before each run.
struct Noise {
  enum class Kind { kBernoulli, kUniform, kNormal };  ///< their order is part of saved steps
  at::Tensor tensor;
  Kind kind;
  double first;   ///< probability, lower end, or mean
  double second;  ///< -, upper end, or standard deviation
};

/// A sub-batch: the tensors of its rows, and its share of the batch's loss.
struct Piece {
  std::vector<at::Tensor> data;
  double weight = 1.0;
};

/// A graph, and the tensors of the user that it works on: its inputs are `bound`, noise, and data.
struct BoundPackage {
  std::shared_ptr<StepPackage> graph;
  std::vector<at::Tensor> bound;  ///< and noise
  std::vector<Noise> noise;
  std::vector<at::Tensor> example;  ///< of its data
  std::vector<TensorSpec> data;

  /// Throws std::invalid_argument where the graph was compiled for others.
  BoundPackage(std::shared_ptr<StepPackage> graph, std::vector<at::Tensor> bound, std::vector<Noise> noise,
               std::vector<at::Tensor> example);
  bool takes(const std::vector<at::Tensor>& data) const;
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& data = {}) const;
};

/// A graph with all its tensors, as `CompiledStep.save` of Python wrote them to `folder`. Throws std::invalid_argument.
BoundPackage load_package(const std::string& folder);

/// A training step that needs no interpreter. See Note [Compiled steps]. On one thread at a time.
class CompiledStep {
 public:
  /// `whole`: forward, backward and update of a batch in one graph, for each shape that is known.
  /// `gradients`: forward and backward of a sub-batch into accumulators, its loss times `weight`, which is one of its
  /// bound tensors (one double). `update`: from the accumulators, which it clears.
  CompiledStep(std::vector<BoundPackage> whole, std::vector<BoundPackage> gradients, std::optional<BoundPackage> update,
               std::vector<at::Tensor> accumulators, at::Tensor weight);

  /// There is a graph for all of these.
  bool covers(const std::vector<Piece>& pieces) const;
  /// One step; returns the batch's loss. std::invalid_argument for what it does not cover, before anything is changed.
  /// `job` may be null: no sub-batches are counted.
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
