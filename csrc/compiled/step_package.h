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

/// A compiled graph: an AOTInductor package of ours. It says for which torch and for which inputs it was compiled.
/// One thread at a time.
class StepPackage {
 public:
  /// Throws std::invalid_argument where `path` holds no such package, or one for another torch.
  explicit StepPackage(const std::string& path);
  ~StepPackage();
  StepPackage(const StepPackage&) = delete;  // owns the loaded code
  StepPackage& operator=(const StepPackage&) = delete;

  /// Throws std::invalid_argument where these are not the inputs that it was compiled for.
  void check(const std::vector<at::Tensor>& inputs) const;

  /// Runs as one op of the calling thread's job, if it has one: waits for its turn, and throws to unwind it. Inputs are
  /// updated in place where the graph says so. They must have passed `check`, or have the same specs as such.
  /// `noise` is drawn first; its tensors must be among the inputs.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, const std::vector<Noise>& noise = {});

 private:
  const std::string path_;
  std::vector<std::string> inputs_;  // texts of specs
  std::string name_;                 // for profiles
  std::uint64_t signature_ = 0;
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

/// One thread at a time reads or loads a package: AOTIModelPackageLoader is not safe beside itself (in torch 2.11 its
/// load_json_file parses into one static object). Held by StepPackage's constructor, and for torch's own loader in
/// Python. Ops are not gated meanwhile: other jobs may wait for the lock.
class PackageLoading {
 public:
  PackageLoading();

 private:
  const Ungated ungated_;
  const std::lock_guard<std::mutex> lock_;
};

/// What a package must carry in its metadata.
namespace package_key {
constexpr const char* kTorch = "torchshare.torch";    ///< the version
constexpr const char* kInputs = "torchshare.inputs";  ///< TensorSpec::text of each, a line each
constexpr const char* kName = "torchshare.name";      ///< "step", "gradients" or "update", and the rows
}  // namespace package_key

}  // namespace torchshare
