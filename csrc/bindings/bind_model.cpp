#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "device/cuda_status.h"
#include "model/split.h"
#include "policy/gate_policy.h"
#include "torchshare/values.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> split(std::int64_t batch, std::int64_t sub_batch) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (const Rows& rows : split_rows(batch, sub_batch)) {
    pieces.emplace_back(rows.begin, rows.end);
  }
  return pieces;
}

}  // namespace

void bind_model(py::module_& module) {
  module.def("split_rows", &split, py::arg("batch"), py::arg("sub_batch"));
  module.def(
      "outranks",
      [](const std::string& a, const std::string& b) { return outranks(parse_priority(a), parse_priority(b)); },
      py::arg("a"), py::arg("b"));
  module.def("gate_policy_names", &gate_policy_names);
  module.def("cuda_status", &cuda_status);
}

}  // namespace torchshare::bindings
