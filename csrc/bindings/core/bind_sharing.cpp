#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "sharing/predecessors.h"
#include "sharing/start_rules.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

/// The names of the jobs that can never start; each job is given by its name, priority and start.
std::vector<std::string> lost(const std::vector<std::tuple<std::string, std::string, std::string>>& jobs) {
  JobRecords records;
  for (const auto& [name, priority, start] : jobs) {
    const auto id = static_cast<JobId>(records.size());
    records.add(std::make_shared<JobRecord>(JobRecord{id, name, parse_priority(priority), parse_start(start)}));
  }
  return lost_starts(records);
}

}  // namespace

void bind_sharing(py::module_& module) {
  py::class_<StartRule, std::shared_ptr<StartRule>>(module, "StartRule")
      .def(py::init(&parse_start), py::arg("text"))
      .def_property_readonly("is_planned", [](const StartRule& rule) { return rule.inputs().plan; })
      .def("enough", &StartRule::enough, py::arg("steps"));
  module.def("lost_starts", &lost, py::arg("jobs"));
  py::class_<Predecessor>(module, "Predecessor")
      .def(py::init(&parse_predecessor), py::arg("text"))
      .def_readonly("name", &Predecessor::name)
      .def_readonly("must_finish", &Predecessor::must_finish);
}

}  // namespace torchshare::bindings
