#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings/bindings.h"
#include "cluster/cluster_policy.h"
#include "cluster/live_scheduler.h"
#include "cluster/simulator.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

/// A workload by columns, one row per job.
std::vector<WorkloadJob> make_workload(const Column<double>& arrival, const Column<double>& duration,
                                       const Column<int>& gpus, const Column<double>& memory_gib,
                                       const Column<int>& model, const Column<double>& fixed_memory,
                                       const Column<double>& fixed_time, const Column<int>& sub_batches,
                                       const Column<double>& deadline, const Column<int>& user) {
  const py::ssize_t size = arrival.size();
  if (duration.size() != size || gpus.size() != size || memory_gib.size() != size || model.size() != size ||
      fixed_memory.size() != size || fixed_time.size() != size || sub_batches.size() != size ||
      deadline.size() != size || user.size() != size) {
    throw std::invalid_argument("the columns of a workload must have equal lengths");
  }
  std::vector<WorkloadJob> workload;
  workload.reserve(static_cast<std::size_t>(size));
  for (py::ssize_t i = 0; i < size; ++i) {
    const SplitModel split{fixed_memory.at(i), fixed_time.at(i), sub_batches.at(i)};
    workload.push_back({.arrival = arrival.at(i),
                        .duration = duration.at(i),
                        .gpus = gpus.at(i),
                        .memory_gib = memory_gib.at(i),
                        .model = model.at(i),
                        .split = split,
                        .deadline = deadline.at(i),
                        .user = user.at(i)});
  }
  return workload;
}

std::unique_ptr<Cluster> make_cluster(const ClusterOptions& options, int models, const std::vector<double>& ratios,
                                      const Column<double>& arrival, const Column<double>& duration,
                                      const Column<int>& gpus, const Column<double>& memory_gib,
                                      const Column<int>& model, const Column<double>& estimate,
                                      const Column<double>& fixed_memory, const Column<double>& fixed_time,
                                      const Column<int>& sub_batches, const Column<double>& deadline,
                                      const Column<int>& user) {
  Interference interference =
      models == 1 && ratios.size() == 1 ? Interference(ratios[0]) : Interference(models, ratios);
  return std::make_unique<Cluster>(
      options, std::move(interference),
      make_workload(arrival, duration, gpus, memory_gib, model, fixed_memory, fixed_time, sub_batches, deadline, user),
      std::vector<Seconds>(estimate.data(), estimate.data() + estimate.size()));
}

/// One column over all jobs.
template <typename Value>
py::array_t<double> per_job(const Cluster& cluster, const Value& value) {
  py::array_t<double> column(static_cast<py::ssize_t>(cluster.jobs()));
  for (JobId job = 0; job < cluster.jobs(); ++job) {
    column.mutable_at(job) = static_cast<double>(value(cluster.job(job)));
  }
  return column;
}

/// Simulates up to `instants` instants; returns whether any remain.
bool run(Simulator& simulator, std::size_t instants) {
  const py::gil_scoped_release release;
  while (instants > 0 && simulator.step()) {
    --instants;
  }
  return simulator.ended() < simulator.cluster().jobs();
}

py::typing::Dict<py::str, py::array_t<double>> jobs_of(const Simulator& simulator) {
  const Cluster& cluster = simulator.cluster();
  py::typing::Dict<py::str, py::array_t<double>> jobs;
  jobs["ended"] = per_job(cluster, [](const ClusterJob& job) { return job.ended; });
  jobs["eligible"] = per_job(cluster, [](const ClusterJob& job) { return job.eligible; });
  jobs["waited"] = per_job(cluster, [](const ClusterJob& job) { return job.waited; });
  jobs["run"] = per_job(cluster, [](const ClusterJob& job) { return job.run; });
  jobs["shared"] = per_job(cluster, [](const ClusterJob& job) { return job.shared; });
  jobs["losses"] = per_job(cluster, [](const ClusterJob& job) { return job.losses; });
  jobs["lost_work"] = per_job(cluster, [](const ClusterJob& job) { return job.lost_work; });
  jobs["preemptions"] = per_job(cluster, [](const ClusterJob& job) { return job.preemptions; });
  return jobs;
}

std::vector<std::tuple<JobId, Seconds, Seconds, std::vector<GpuId>>> spans_of(const Simulator& simulator) {
  std::vector<std::tuple<JobId, Seconds, Seconds, std::vector<GpuId>>> rows;
  for (const Span& span : simulator.cluster().spans()) {
    rows.emplace_back(span.job, span.begin, span.end, span.gpus);
  }
  return rows;
}

std::vector<std::tuple<Seconds, int, int, std::size_t>> usage_of(const Simulator& simulator) {
  std::vector<std::tuple<Seconds, int, int, std::size_t>> rows;
  for (const Usage& usage : simulator.usage()) {
    rows.emplace_back(usage.time, usage.busy, usage.shared, usage.queue);
  }
  return rows;
}

using Progress = std::tuple<Seconds, Seconds, Seconds, int, int, std::optional<double>, bool, int, bool>;

Progress progress_of(const LiveScheduler& scheduler, JobId job) {
  const JobProgress found = scheduler.progress(job);
  return {found.work_left,   found.restart_left, found.run,         found.preemptions,     found.rank->level,
          found.rank->value, found.held,         found.sub_batches, found.deadline_dropped};
}

void restore(LiveScheduler& scheduler, JobId job, const Progress& progress, std::vector<GpuId> gpus, Seconds now) {
  const auto [work_left, restart_left, run, preemptions, level, value, held, sub_batches, dropped] = progress;
  const std::optional<Rank> rank = value ? std::optional(Rank{level, *value}) : std::nullopt;
  scheduler.restore(job, {work_left, restart_left, run, preemptions, rank, held, sub_batches, dropped}, std::move(gpus),
                    now);
}

using Split = std::tuple<double, double, int>;  // see SplitModel

WorkloadJob live_job(Seconds arrival, Seconds estimate, int gpus, double memory_gib, int model, int priority, int group,
                     Seconds deadline, const Split& split) {
  const auto [fixed_memory, fixed_time, most] = split;
  return {arrival, estimate, gpus, memory_gib, model, priority, group, {fixed_memory, fixed_time, most}, deadline};
}

/// The arguments of `live_job` after the first.
using LiveJob = std::tuple<Seconds, int, double, int, int, int, Seconds, Split>;

using Orders = std::pair<std::vector<JobId>, std::vector<JobId>>;

/// An event of the live scheduler: its arguments are what it is about, if anything, and the time.
template <typename... Arguments>
auto event(LiveScheduler::Orders (LiveScheduler::*report)(Arguments...)) {
  return [report](LiveScheduler& scheduler, Arguments... arguments) {
    const auto [suspend, start] = (scheduler.*report)(arguments...);
    return Orders{suspend, start};
  };
}

}  // namespace

void bind_cluster(py::module_& module) {
  module.def("cluster_policy_names", &cluster_policy_names);
  module.def("find_cycle", &find_cycle, py::arg("predecessors"));
  py::class_<ClusterOptions>(module, "ClusterOptions")
      .def(py::init<>())
      .def_readwrite("gpus", &ClusterOptions::gpus)
      .def_readwrite("gpus_per_node", &ClusterOptions::gpus_per_node)
      .def_readwrite("gpu_memory_gib", &ClusterOptions::gpu_memory_gib)
      .def_readwrite("restart_cost", &ClusterOptions::restart_cost)
      .def_readwrite("durations_known", &ClusterOptions::durations_known)
      .def_readwrite("largest_split", &ClusterOptions::largest_split)
      .def_readwrite("keep_splits", &ClusterOptions::keep_splits)
      .def_readwrite("one_gang_beside", &ClusterOptions::one_gang_beside)
      .def_readwrite("fair_half_life", &ClusterOptions::fair_half_life)
      .def_readwrite("rank_by_path", &ClusterOptions::rank_by_path)
      .def_readwrite("checkpoint_every", &ClusterOptions::checkpoint_every)
      .def_readwrite("record_spans", &ClusterOptions::record_spans);
  py::class_<Cluster>(module, "Cluster")
      .def(py::init(&make_cluster), py::arg("options"), py::arg("models"), py::arg("ratios"), py::arg("arrival"),
           py::arg("duration"), py::arg("gpus"), py::arg("memory_gib"), py::arg("model"), py::arg("estimate"),
           py::arg("fixed_memory"), py::arg("fixed_time"), py::arg("sub_batches"), py::arg("deadline"),
           py::arg("user"));
  py::class_<Failures>(module, "Failures")
      .def(py::init([](const std::vector<std::tuple<GpuId, int, Seconds, Seconds>>& rows) {
             std::vector<Outage> outages;
             for (const auto& [first, gpus, begin, end] : rows) {
               outages.push_back({first, gpus, begin, end});
             }
             return Failures(std::move(outages));
           }),
           py::arg("outages") = std::vector<std::tuple<GpuId, int, Seconds, Seconds>>{})
      .def(py::init([](Seconds between, Seconds repair, double node_share, int gpus, int per_node, std::uint64_t seed) {
             return Failures({between, repair, node_share, seed}, gpus, per_node);
           }),
           py::arg("between"), py::arg("repair"), py::arg("node_share"), py::arg("gpus"), py::arg("per_node"),
           py::arg("seed"))
      .def("__repr__", [](const Failures&) { return "Failures()"; });
  py::class_<Simulator>(module, "Simulator")
      .def(py::init([](const Cluster& cluster, std::string_view policy, const Predecessors& after,
                       const Failures& failures, bool record_usage) {
             return std::make_unique<Simulator>(cluster, make_cluster_policy(policy),
                                                SimulatorOptions{after, failures, record_usage});
           }),
           py::arg("cluster"), py::arg("policy"), py::arg("after") = Predecessors{}, py::arg("failures") = Failures(),
           py::arg("record_usage") = false)
      .def("run", &run, py::arg("instants"))
      .def("jobs", &jobs_of)
      .def("spans", &spans_of)
      .def("usage", &usage_of)
      .def_property_readonly("ended", &Simulator::ended)
      .def_property_readonly("busy_gpu_seconds", &Simulator::busy_gpu_seconds)
      .def_property_readonly("away_gpu_seconds", &Simulator::away_gpu_seconds);
  py::class_<LiveScheduler>(module, "LiveScheduler")
      .def(py::init([](const Cluster& cluster, std::string_view policy) {
             return std::make_unique<LiveScheduler>(cluster, make_cluster_policy(policy));
           }),
           py::arg("cluster"), py::arg("policy"))
      .def(
          "add",
          [](LiveScheduler& scheduler, Seconds arrival, Seconds estimate, int gpus, double memory_gib, int model,
             int priority, int group, Seconds deadline, const Split& split) {
            return scheduler.add(live_job(arrival, estimate, gpus, memory_gib, model, priority, group, deadline, split),
                                 estimate);
          },
          py::arg("arrival"), py::arg("estimate"), py::arg("gpus"), py::arg("memory_gib"), py::arg("model"),
          py::arg("priority"), py::arg("group"), py::arg("deadline"), py::arg("split"))
      .def(
          "miss_with",
          [](const LiveScheduler& scheduler, Seconds now, const std::vector<LiveJob>& asked, bool decides_now) {
            std::vector<WorkloadJob> jobs;
            for (const LiveJob& job : asked) {
              jobs.push_back(std::apply(live_job, std::tuple_cat(std::tuple(now), job)));
            }
            const auto found = scheduler.miss_with(jobs, now, decides_now);
            return found ? std::optional(std::tuple(found->index, found->miss.job, found->miss.end)) : std::nullopt;
          },
          py::arg("now"), py::arg("jobs"), py::arg("decides_now"))
      .def("arrive", event(py::overload_cast<const std::vector<JobId>&, Seconds>(&LiveScheduler::arrive)),
           py::arg("jobs"), py::arg("now"))
      .def("release", event(&LiveScheduler::release), py::arg("jobs"), py::arg("now"))
      .def("end", event(&LiveScheduler::end), py::arg("job"), py::arg("now"),
           py::arg("successors") = std::vector<JobId>())
      .def("lose", event(&LiveScheduler::lose), py::arg("gpu"), py::arg("heard"), py::arg("now"))
      .def("gain", event(&LiveScheduler::gain), py::arg("gpu"), py::arg("now"))
      .def("look", event(&LiveScheduler::look), py::arg("now"))
      .def_property_readonly("look_again", &LiveScheduler::look_again)
      .def("add_node", &LiveScheduler::add_node)
      .def("progress", &progress_of, py::arg("job"))
      .def("restore", &restore, py::arg("job"), py::arg("progress"), py::arg("gpus"), py::arg("now"))
      .def("set_pinned", &LiveScheduler::set_pinned, py::arg("job"), py::arg("pinned"))
      .def("set_group", &LiveScheduler::set_group, py::arg("job"), py::arg("group"))
      .def("add_model", &LiveScheduler::add_model)
      .def("set_ratio", &LiveScheduler::set_ratio, py::arg("model"), py::arg("partner"), py::arg("ratio"),
           py::arg("now"))
      .def(
          "gpus", [](const LiveScheduler& scheduler, JobId job) { return scheduler.cluster().job(job).gpus; },
          py::arg("job"))
      .def(
          "sub_batches",
          [](const LiveScheduler& scheduler, JobId job) { return scheduler.cluster().job(job).sub_batches; },
          py::arg("job"));
}

}  // namespace torchshare::bindings
