#include "bindings/buffer_copies.h"

#include <ATen/ops/_foreach_copy.h>
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

}  // namespace

void BufferCopies::keep(const Modules& modules, const CopiedBuffers& copied) {
  groups_.clear();
  for (const auto& [buffer, copy] : copied) {
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
      return other.copies.front().scalar_type() == copy.scalar_type() && other.copies.front().device() == copy.device();
    });
    if (group == groups_.end()) {
      group = groups_.emplace(groups_.end());
    }
    group->copies.push_back(copy);
    group->buffers.push_back(buffer);
  }
  layout_ = layout_of(modules);
  kept_.clear();
  for (PyObject* member : layout_.members) {
    kept_.push_back(py::reinterpret_borrow<py::object>(member));
  }
}

bool BufferCopies::refresh(const Modules& modules) {
  const bool same = layout_of(modules) == layout_ && std::ranges::all_of(groups_, [](const Group& group) {
                      return std::ranges::equal(group.copies, group.buffers, alike);
                    });
  if (same) {
    const std::vector<Group> groups = groups_;
    const py::gil_scoped_release release;  // the ops may wait at the gate; another thread may call `keep`
    const at::NoGradGuard no_grad;
    for (const Group& group : groups) {
      at::_foreach_copy_(group.copies, group.buffers);
    }
  }
  return same;
}

BufferCopies::Layout BufferCopies::layout_of(const Modules& modules) {
  Layout layout;
  for (const py::handle module : modules) {
    const py::dict buffers = module.attr("_buffers");
    for (const auto& [name, buffer] : buffers) {
      layout.modules.push_back(module.ptr());
      layout.members.insert(layout.members.end(), {name.ptr(), buffer.ptr()});
    }
  }
  return layout;
}

}  // namespace torchshare::bindings
