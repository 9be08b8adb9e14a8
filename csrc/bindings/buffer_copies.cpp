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

bool BufferCopies::Layout::operator==(const Layout& other) const {
  return modules == other.modules &&
         std::ranges::equal(members, other.members, [](const auto& a, const auto& b) { return a.is(b); });
}

void BufferCopies::keep(const Modules& modules, std::vector<Group> groups) {
  std::optional<Layout> layout = layout_of(modules);
  groups_.swap(groups);
  layout_.swap(layout);
}

void BufferCopies::forget() {
  std::vector<Group> groups;
  std::optional<Layout> layout;
  groups_.swap(groups);
  layout_.swap(layout);
}

bool BufferCopies::refresh(const Modules& modules) {
  const Layout layout = layout_of(modules);
  const bool same = layout_ && layout == *layout_ && std::ranges::all_of(groups_, [](const Group& group) {
                      return std::ranges::equal(group.first, group.second, alike);
                    });
  if (same) {
    const std::vector<Group> groups = groups_;
    const py::gil_scoped_release release;  // the ops may wait at the gate; another thread may call `forget`
    const at::NoGradGuard no_grad;
    for (const auto& [copies, buffers] : groups) {
      at::_foreach_copy_(copies, buffers);
    }
  }
  return same;
}

BufferCopies::Layout BufferCopies::layout_of(const Modules& modules) {
  Layout layout;
  for (const py::handle module : modules) {
    const py::dict buffers = module.attr("_buffers");  // of a script module, a new one each time
    for (const auto& [name, buffer] : buffers) {
      layout.modules.push_back(module.ptr());
      layout.members.push_back(py::reinterpret_borrow<py::object>(name));
      layout.members.push_back(py::reinterpret_borrow<py::object>(buffer));
    }
  }
  return layout;
}

}  // namespace torchshare::bindings
