#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "planner/queue_planner.h"
#include "sharing/shared_job.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

PlannedJob make_job(std::string name, double steps, double batch, const StepTimeModel& time, const MemoryModel& memory,
                    std::vector<double> ratios, const std::vector<std::pair<double, double>>& measured) {
  PlannedJob job{std::move(name), steps, batch, time, memory, std::move(ratios)};
  for (const auto& [step, bytes] : measured) {
    job.measured.push_back({step, bytes});
  }
  return job;
}

Plan plan_two(const PlannedJob& new_job, const PlannedJob& running, std::optional<double> memory,
              std::optional<double> max_slowdown, double suspend_cost) {
  PlanOptions options{.max_slowdown = max_slowdown, .suspend_cost = suspend_cost};
  if (memory) {
    options.memory = {{.from = 0, .bytes = *memory}};
  }
  return plan_pair(new_job, running, options);
}

}  // namespace

void bind_planner(py::module_& module) {
  py::class_<ProfiledJob>(module, "ProfiledJob")
      .def(py::init([](std::string name, double step, const std::map<std::string, std::pair<double, double>>& beside) {
             ProfiledJob profile{std::move(name), step, {}};
             for (const auto& [other, ratios] : beside) {
               profile.beside[other] = {ratios.first, ratios.second};
             }
             return profile;
           }),
           py::arg("name"), py::arg("step"), py::arg("beside"));
  py::class_<StepTimeModel>(module, "StepTimeModel")
      .def(py::init<double, double, double, double>(), py::arg("alpha"), py::arg("beta"), py::arg("communication"),
           py::arg("delta"))
      .def("step", &StepTimeModel::step, py::arg("batch"), py::arg("sub_batches"));
  py::class_<MemoryModel>(module, "MemoryModel").def(py::init<double, double>(), py::arg("fixed"), py::arg("per_row"));
  py::class_<PlannedJob>(module, "PlannedJob")
      .def(py::init(&make_job), py::arg("name"), py::arg("steps"), py::arg("batch"), py::arg("time"), py::arg("memory"),
           py::arg("ratios"), py::arg("measured"));
  py::class_<Plan>(module, "Plan")
      .def_property_readonly("start", [](const Plan& plan) { return to_string(plan.start); })
      .def_readonly("start_in", &Plan::start_in)
      .def_readonly("at_step", &Plan::at_step)
      .def_readonly("new_sub_batches", &Plan::new_sub_batches)
      .def_readonly("running_sub_batches", &Plan::running_sub_batches)
      .def_readonly("new_ends", &Plan::new_ends)
      .def_readonly("running_ends", &Plan::running_ends)
      .def_readonly("reasons", &Plan::reasons)
      .def_property_readonly("average", &Plan::average);
  py::class_<QueuedPair>(module, "QueuedPair")
      .def(py::init<std::size_t, std::size_t, std::vector<double>, std::vector<double>>(), py::arg("a"), py::arg("b"),
           py::arg("a_ratios"), py::arg("b_ratios"));
  py::class_<QueuePiece>(module, "QueuePiece")
      .def_readonly("job", &QueuePiece::job)
      .def_readonly("partner", &QueuePiece::partner)
      .def_readonly("sub_batches", &QueuePiece::sub_batches)
      .def_readonly("begin", &QueuePiece::begin)
      .def_readonly("end", &QueuePiece::end);
  py::class_<QueuePlan>(module, "QueuePlan")
      .def_readonly("pieces", &QueuePlan::pieces)
      .def_readonly("ends", &QueuePlan::ends)
      .def_readonly("exact", &QueuePlan::exact)
      .def_property_readonly("average", &QueuePlan::average);
  module.def("plan_pair", &plan_two, py::arg("new_job"), py::arg("running"), py::arg("memory"), py::arg("max_slowdown"),
             py::arg("suspend_cost"), py::call_guard<py::gil_scoped_release>());
  module.def(
      "plan_queue",
      [](const std::vector<PlannedJob>& jobs, const std::vector<QueuedPair>& pairs, std::optional<double> memory) {
        return plan_queue(jobs, pairs, {.memory = memory});
      },
      py::arg("jobs"), py::arg("pairs"), py::arg("memory"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace torchshare::bindings
