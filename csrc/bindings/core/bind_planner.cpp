#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>

#include "bindings/bindings.h"
#include "model/time.h"
#include "planner/demand_bound.h"
#include "planner/op_replay.h"
#include "planner/periodic_replay.h"
#include "planner/queue_planner.h"
#include "planner/server_model.h"
#include "planner/workflow_planner.h"
#include "policy/edf_policy.h"
#include "sharing/shared_job.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

PlannedJob make_job(std::string name, double steps, double batch, const StepTimeModel& time, const MemoryModel& memory,
                    std::vector<double> ratios, const std::vector<std::pair<double, double>>& measured,
                    std::optional<Seconds> deadline) {
  PlannedJob job{std::move(name), steps, batch, time, memory, std::move(ratios)};
  for (const auto& [step, bytes] : measured) {
    job.measured.push_back({step, bytes});
  }
  job.deadline = deadline;
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

/// Throws what Python's signal handlers raise, such as KeyboardInterrupt. Without the GIL.
void hear_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

OpTrace make_op_trace(const Column<std::uint64_t>& context, const Column<double>& gap, const Column<double>& idle,
                      const Column<double>& duration, const std::vector<std::uint64_t>& step_ends,
                      const std::optional<Column<std::uint8_t>>& kind) {
  OpTrace trace{.step_ends = step_ends};
  if (gap.size() != context.size() || idle.size() != context.size() || duration.size() != context.size() ||
      (kind && kind->size() != context.size())) {
    throw std::invalid_argument("the columns of an op trace must have equal lengths");
  }
  for (py::ssize_t i = 0; i < context.size(); ++i) {
    trace.ops.push_back({context.at(i), 1e9 * gap.at(i), 1e9 * idle.at(i), 1e9 * duration.at(i),
                         kind ? static_cast<OpKind>(kind->at(i)) : OpKind::kUnknown});
  }
  return trace;
}

void bind_op_replay(py::module_& module) {
  py::class_<OpTrace>(module, "OpTrace")
      .def(py::init(&make_op_trace), py::arg("context"), py::arg("gap"), py::arg("idle"), py::arg("duration"),
           py::arg("step_ends"), py::arg("kind") = py::none());
  py::class_<Replayed>(module, "Replayed")
      .def_property_readonly("step_ends",
                             [](const Replayed& done) {
                               std::vector<double> seconds;
                               for (const double end : done.step_ends) {
                                 seconds.push_back(1e-9 * end);
                               }
                               return seconds;
                             })
      .def_readonly("ops", &Replayed::ops)
      .def_property_readonly("waited_s", [](const Replayed& done) { return 1e-9 * done.waited.count(); });
  module.def(
      "replay_ops",
      [](const std::vector<std::tuple<std::string, int, OpTrace>>& jobs, const std::string& policy, double grace,
         int cores, bool device_priority, double shortest_gap, double wake_latency, std::optional<double> max_wait,
         std::optional<double> run_ahead) {
        std::vector<ReplayJob> replayed;
        for (const auto& [priority, threads, trace] : jobs) {
          replayed.push_back({parse_priority(priority), threads, trace});
        }
        const ReplayOptions options{.cores = cores,
                                    .device_priority = device_priority,
                                    .shortest_gap = from_seconds(shortest_gap),
                                    .wake_latency = from_seconds(wake_latency)};
        GatePolicyOptions gate{.grace = from_seconds(grace)};
        if (max_wait) {
          gate.max_wait = from_seconds(*max_wait);
        }
        if (run_ahead) {
          gate.run_ahead = from_seconds(*run_ahead);
        }
        const py::gil_scoped_release release;
        return OpReplay(std::move(replayed), make_gate_policy(policy, gate), options).run(hear_signals);
      },
      py::arg("jobs"), py::arg("policy"), py::arg("grace"), py::arg("cores"), py::arg("device_priority"),
      py::arg("shortest_gap"), py::arg("wake_latency"), py::arg("max_wait") = py::none(),
      py::arg("run_ahead") = py::none());
}

/// In seconds: period, deadline, cost, longest op.
using TaskTimes = std::tuple<Seconds, Seconds, Seconds, Seconds>;

PeriodicTask task_of(const TaskTimes& times) {
  const auto [period, deadline, cost, longest_op] = times;
  return {from_seconds(period), from_seconds(deadline), from_seconds(cost), from_seconds(longest_op)};
}

void bind_periodic(py::module_& module) {
  py::class_<DemandBound>(module, "DemandBound")
      .def_readonly("is_feasible", &DemandBound::is_feasible)
      .def_readonly("utilization", &DemandBound::utilization)
      .def_property_readonly("at_s", [](const DemandBound& bound) { return to_seconds(bound.at); })
      .def_property_readonly("room_s", [](const DemandBound& bound) { return to_seconds(bound.room); })
      .def_property_readonly("blocking_allowed_s",
                             [](const DemandBound& bound) { return to_seconds(bound.blocking_allowed); });
  module.def(
      "demand_bound",
      [](const std::vector<TaskTimes>& times) {
        std::vector<PeriodicTask> tasks;
        std::transform(times.begin(), times.end(), std::back_inserter(tasks), task_of);
        return demand_bound(tasks);
      },
      py::arg("tasks"));
  module.def("unit_overhead_s", [] { return to_seconds(EdfPolicy::kUnitOverhead); });
  py::class_<PeriodicReplay>(module, "PeriodicReplay")
      .def_readonly("units", &PeriodicReplay::units)
      .def_readonly("missed", &PeriodicReplay::missed)
      .def_property_readonly("others_s", [](const PeriodicReplay& done) { return to_seconds(done.others); });
  module.def(
      "replay_periodic",
      [](const std::vector<std::tuple<TaskTimes, int, std::string, Seconds>>& tasks, const std::vector<Seconds>& others,
         const std::string& policy, Seconds blocking_allowed, Seconds until) {
        std::vector<ReplayedTask> replayed;
        for (const auto& [times, ops, priority, first_release] : tasks) {
          replayed.push_back({task_of(times), ops, parse_priority(priority), from_seconds(first_release)});
        }
        std::vector<std::chrono::nanoseconds> ops;
        std::transform(others.begin(), others.end(), std::back_inserter(ops), from_seconds);
        const py::gil_scoped_release release;
        return replay_periodic(replayed, ops, policy, from_seconds(blocking_allowed), from_seconds(until));
      },
      py::arg("tasks"), py::arg("others"), py::arg("policy"), py::arg("blocking_allowed"), py::arg("until"));
}

using BesideRatios = std::tuple<double, double, std::optional<double>>;

void bind_server_model(py::module_& module) {
  py::class_<ServerForecast>(module, "ServerForecast")
      .def_readonly("latency", &ServerForecast::latency)
      .def_readonly("late", &ServerForecast::late)
      .def_readonly("lower", &ServerForecast::lower);
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<ServerModel>(module, "ServerModel")
      .def(py::init([](double per_second, std::vector<double> service, std::vector<double> beside, double op,
                       int parallel, double wait) {
             return ServerModel({per_second, std::move(service), std::move(beside), op, parallel, wait});
           }),
           py::arg("per_second"), py::arg("service"), py::arg("beside"), py::arg("op"), py::arg("parallel"),
           py::arg("wait"))
      .def("forecast", &ServerModel::forecast, py::arg("share"), py::arg("limit"), without_gil)
      .def("largest_share", &ServerModel::largest_share, py::arg("target"), without_gil);
}

void bind_workflow(py::module_& module) {
  py::class_<StageOption>(module, "StageOption")
      .def(py::init<int, std::optional<std::size_t>, Seconds, Seconds, Seconds>(), py::arg("batch"), py::arg("partner"),
           py::arg("latency"), py::arg("service"), py::arg("cost"))
      .def_readonly("batch", &StageOption::batch)
      .def_readonly("partner", &StageOption::partner)
      .def_readonly("cost", &StageOption::cost);
  py::class_<WorkflowStage>(module, "WorkflowStage")
      .def(py::init<std::string, std::vector<std::size_t>, std::vector<StageOption>>(), py::arg("name"),
           py::arg("after"), py::arg("options"))
      .def_readonly("options", &WorkflowStage::options);
  py::class_<PlannedStage>(module, "PlannedStage")
      .def_readonly("option", &PlannedStage::option)
      .def_readonly("wait", &PlannedStage::wait)
      .def_readonly("latency", &PlannedStage::latency)
      .def_readonly("ends_by", &PlannedStage::ends_by)
      .def_readonly("budget", &PlannedStage::budget);
  py::class_<WorkflowPlan>(module, "WorkflowPlan")
      .def_readonly("stages", &WorkflowPlan::stages)
      .def_readonly("critical", &WorkflowPlan::critical)
      .def_readonly("latency", &WorkflowPlan::latency)
      .def_readonly("cost", &WorkflowPlan::cost)
      .def_readonly("nodes", &WorkflowPlan::nodes)
      .def_readonly("exact", &WorkflowPlan::exact);
  module.def(
      "plan_workflow",
      [](const std::vector<WorkflowStage>& stages, Seconds limit, double per_second, std::uint64_t max_nodes) {
        return plan_workflow(stages, {limit, per_second, max_nodes});
      },
      py::arg("stages"), py::arg("limit"), py::arg("per_second"), py::arg("max_nodes") = WorkflowGoal().max_nodes,
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace

void bind_planner(py::module_& module) {
  py::class_<ProfiledJob>(module, "ProfiledJob")
      .def(py::init([](std::string name, double step, const std::map<std::string, BesideRatios>& beside, bool answers) {
             ProfiledJob profile{.name = std::move(name), .step = step, .answers = answers};
             for (const auto& [other, ratios] : beside) {
               const auto& [own, others, share] = ratios;
               profile.beside[other] = {own, others, share};
             }
             return profile;
           }),
           py::arg("name"), py::arg("step"), py::arg("beside"), py::arg("answers"))
      .def_readonly("step", &ProfiledJob::step);
  bind_op_replay(module);
  bind_server_model(module);
  bind_periodic(module);
  module.attr("UNIT_QUANTILE") = PeriodicTask::kCostQuantile;
  module.attr("UNIT_MARGIN") = PeriodicTask::kCostMargin;
  bind_workflow(module);
  py::class_<StepTimeModel>(module, "StepTimeModel")
      .def(py::init<double, double, double, double>(), py::arg("alpha"), py::arg("beta"), py::arg("communication"),
           py::arg("delta"))
      .def("step", &StepTimeModel::step, py::arg("batch"), py::arg("sub_batches"));
  py::class_<MemoryModel>(module, "MemoryModel").def(py::init<double, double>(), py::arg("fixed"), py::arg("per_row"));
  py::class_<PlannedJob>(module, "PlannedJob")
      .def(py::init(&make_job), py::arg("name"), py::arg("steps"), py::arg("batch"), py::arg("time"), py::arg("memory"),
           py::arg("ratios"), py::arg("measured"), py::arg("deadline") = py::none());
  py::class_<Plan>(module, "Plan")
      .def_property_readonly("start", [](const Plan& plan) { return to_string(plan.start); })
      .def_readonly("start_in", &Plan::start_in)
      .def_readonly("at_step", &Plan::at_step)
      .def_readonly("new_sub_batches", &Plan::new_sub_batches)
      .def_readonly("running_sub_batches", &Plan::running_sub_batches)
      .def_readonly("new_ends", &Plan::new_ends)
      .def_readonly("running_ends", &Plan::running_ends)
      .def_readonly("late", &Plan::late)
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
