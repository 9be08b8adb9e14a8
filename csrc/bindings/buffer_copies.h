#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pytypes.h>
#include <pybind11/typing.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace torchshare::bindings {

using Modules = pybind11::typing::List<pybind11::object>;                   // of torch.nn
using Group = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;  // copies, and the buffer of each

/// Copies of modules' buffers that are made again before each batch, when the GPU may have nothing to do. Whether they
/// are the buffers of the last batch is found out without running Python. With the GIL; a call may free objects, whose
/// destructors may call this.
class BufferCopies {
 public:
  /// `groups`: all buffers of the modules, by device and type.
  void keep(const Modules& modules, std::vector<Group> groups);
  void forget();
  /// Copies each buffer again. False, with nothing copied, unless the modules are those kept, in the same order, with
  /// the same buffers under the same names, each still of the shape, type and device of its copy.
  bool refresh(const Modules& modules);

 private:
  struct Layout {
    std::vector<PyObject*> modules;         // of each buffer
    std::vector<pybind11::object> members;  // the name of each buffer and itself
    bool operator==(const Layout& other) const;
  };
  struct Kept {
    std::vector<Group> groups;
    Layout layout;
  };
  static Layout layout_of(const Modules& modules);

  std::shared_ptr<const Kept> exchange(std::shared_ptr<const Kept> kept);

  std::mutex mutex_;                  // guards kept_
  std::shared_ptr<const Kept> kept_;  // null: nothing
};

}  // namespace torchshare::bindings
