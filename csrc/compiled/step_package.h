#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hook/op_context.h"
#include "torchshare/compiled_step.h"

namespace torch::inductor {
class AOTIModelPackageLoader;
}

namespace torchshare {

/// A compiled step, a part of one, or a compiled model: an AOTInductor package that names the torch and the inputs it
/// was compiled for.
class StepPackage {
 public:
  /// `runners`: calls of `infer` that can run at a time; further ones wait for them.
  /// Throws std::invalid_argument if `path` is no such package, or one for another torch.
  explicit StepPackage(const std::string& path, std::size_t runners = 1);
  ~StepPackage();
  StepPackage(const StepPackage&) = delete;  // owns the loaded code
  StepPackage& operator=(const StepPackage&) = delete;

  /// What inputs it was compiled for. Throws std::invalid_argument if these are not such inputs.
  std::vector<TensorSpec> specs(const std::vector<at::Tensor>& inputs) const;

  /// Runs as one op of the calling thread's job, if it has one: waits for its turn, or throws to unwind the job. The
  /// compiled code updates some inputs in place. They must have passed `specs`, or match what it returned.
  /// `noise` is drawn first; its tensors must be among the inputs. `counts`, inputs too, are increased by 1 at the end.
  /// Compiled code that runs out of memory may have updated some inputs and not others. So from the second run on,
  /// throws BudgetExceeded before it begins if the job's budget does not hold what the first run needed.
  /// One thread at a time.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::vector<Noise>& noise = {},
                              const std::vector<at::Tensor>& counts = {});

  /// As `run`, for code that updates none of its inputs and draws no noise. With several runners, any thread.
  std::vector<at::Tensor> infer(const std::vector<at::Tensor>& inputs);

 private:
  const std::string path_;
  std::vector<std::string> inputs_;  // specs as text
  std::string name_;                 // for profiles
  std::uint64_t signature_ = 0;
  std::int64_t need_ = 0;  // bytes beyond what was held before, at most; 0: not run yet
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

/// The inputs of a package: the tensors that it is bound to, and then those of a call.
std::vector<at::Tensor> joined(std::vector<at::Tensor> bound, const std::vector<at::Tensor>& data);

/// The lock for reading or loading a package: AOTIModelPackageLoader is not thread-safe (in torch 2.11 its
/// load_json_file parses into one static object). Held by StepPackage's constructor, and around torch's own loader in
/// Python. Ops are not gated while it is held: other jobs may wait for it.
class PackageLoading {
 public:
  PackageLoading();

 private:
  const Ungated ungated_;
  const std::lock_guard<std::mutex> lock_;
};

/// Keys of a package's metadata.
namespace package_key {
constexpr const char* kTorch = "torchshare.torch";    ///< the version
constexpr const char* kInputs = "torchshare.inputs";  ///< TensorSpec::text of each, one per line
constexpr const char* kName = "torchshare.name";      ///< "step", "gradients", "update" or "model", and the rows
}  // namespace package_key

}  // namespace torchshare
