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
  exchange(std::make_shared<const Kept>(Kept{std::move(groups), layout_of(modules)}));
}

void BufferCopies::forget() {
  exchange(nullptr);
}

std::shared_ptr<const BufferCopies::Kept> BufferCopies::exchange(std::shared_ptr<const Kept> kept) {
  const std::lock_guard lock(mutex_);
  kept_.swap(kept);
  return kept;  // destroyed by the caller, without the lock
}

bool BufferCopies::refresh(const Modules& modules) {
  const std::shared_ptr<const Kept> kept = [&] {
    const std::lock_guard lock(mutex_);
    return kept_;
  }();
  const bool same =
      kept && layout_of(modules) == kept->layout && std::ranges::all_of(kept->groups, [](const Group& group) {
        return std::ranges::equal(group.first, group.second, alike);
      });
  if (same) {
    const py::gil_scoped_release release;  // the ops may wait at the gate; another thread may call `forget`
    const at::NoGradGuard no_grad;
    for (const auto& [copies, buffers] : kept->groups) {
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
