#include <fmt/format.h>
#include <pybind11/chrono.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>

#include "bindings/bindings.h"
#include "bindings/python_binding.h"
#include "bindings/python_threads.h"
#include "bindings/typed.h"
#include "model/time.h"
#include "runtime/adopted_thread.h"
#include "runtime/job.h"
#include "runtime/runtime_state.h"
#include "runtime/timeline_file.h"
#include "torchshare/runtime.h"

namespace py = pybind11;

namespace torchshare::bindings {
namespace {

using ReleaseGil = py::call_guard<py::gil_scoped_release>;

/// Warnings are Python's, until the destructor, which may throw one. Same thread, with the GIL.
class PythonWarnings {
 public:
  PythonWarnings() : exceptions_(std::uncaught_exceptions()) {}
  ~PythonWarnings() noexcept(false) {
    if (std::uncaught_exceptions() > exceptions_) {
      handler_.set_in_exception();
    }
  }
  PythonWarnings(const PythonWarnings&) = delete;  // bound to a thread
  PythonWarnings& operator=(const PythonWarnings&) = delete;

 private:
  torch::PyWarningHandler handler_;
  const int exceptions_;
};

using Warns = py::call_guard<PythonWarnings>;

std::optional<std::chrono::nanoseconds> duration(std::optional<Seconds> seconds) {
  return seconds ? std::optional(from_seconds(*seconds)) : std::nullopt;
}

/// A duration that may be left out, in seconds for Python. `field(object)` refers to it.
template <class Type, class Field>
void def_seconds(py::class_<Type>& type, const char* name, Field field) {
  type.def_property(
      name,
      [field](const Type& object) {
        const std::optional<std::chrono::nanoseconds>& time = field(object);
        return time ? std::optional(to_seconds(*time)) : std::nullopt;
      },
      [field](Type& object, std::optional<Seconds> time) { field(object) = duration(time); });
}

const OpWatch& watched(const RuntimeJob& job) {
  if (job.watch() == nullptr || !job.has_left()) {
    throw std::logic_error(fmt::format(
        "job '{}': its ops are available only if they were watched and the job's thread has ended", job.spec().name));
  }
  return *job.watch();
}

/// Holds a Python object; may be destroyed by a thread without the GIL.
std::shared_ptr<py::function> shared(py::function function) {
  return {new py::function(std::move(function)), [](py::function* held) {
            if (is_ending()) {
              return;  // it stays
            }
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

std::shared_ptr<RuntimeJob> submit(Runtime& runtime, py::typing::Callable<void(RuntimeJob&)> function, JobSpec spec,
                                   ExceptionType cancelled_type, ExceptionType budget_exceeded_type,
                                   ProcessCode process_code,
                                   const std::optional<std::shared_ptr<RuntimeJob>>& replaces) {
  auto python = std::make_unique<PythonBinding>(
      PythonExceptions{std::move(cancelled_type), std::move(budget_exceeded_type), std::move(process_code)});
  auto body = [python = python.get(), function = shared(std::move(function))](Job& job) {
    python->run(runtime_job(job), *function);
  };
  return runtime.submit(std::move(spec), std::move(body), std::move(python), replaces ? replaces->get() : nullptr);
}

using Order = std::tuple<JobId, int, std::string>;  // job, action, reason; see AutoSharing::Order

std::vector<Order> take_orders(const Runtime& runtime) {
  const py::gil_scoped_release no_gil;
  std::vector<Order> orders;
  for (AutoSharing::Order& order : runtime.state().coordinator.take_orders()) {
    orders.emplace_back(order.job, static_cast<int>(order.action), std::move(order.reason));
  }
  return orders;
}

void obey(const Runtime& runtime, JobId job, int action, std::string reason) {
  runtime.state().coordinator.obey({job, static_cast<AutoSharing::Action>(action), std::move(reason)});
}

/// Share, cycle and age of the origin, in seconds; for other ranks, which apply it until they get another one.
std::tuple<double, double, double> pace(const Runtime& runtime) {
  const Pace pace = runtime.state().gate.pace();
  const auto now = runtime.state().now();
  return {now < pace.until ? pace.share : 1, to_seconds(pace.cycle), to_seconds(now - pace.origin)};
}

void set_pace(const Runtime& runtime, double share, Seconds cycle, Seconds age) {
  runtime.state().gate.set_pace(
      {.origin = runtime.state().now() - from_seconds(age), .cycle = from_seconds(cycle), .share = share});
}

/// The recorded ops as columns; times in seconds.
py::typing::Dict<py::str, AnyArray> op_trace(const RuntimeJob& job) {
  const std::vector<OpTrace::Op>& ops = watched(job).trace().ops;
  const auto column = [&](auto value) {
    using Value = decltype(value(ops[0]));
    py::array_t<Value> values(static_cast<py::ssize_t>(ops.size()));
    std::transform(ops.begin(), ops.end(), values.mutable_data(), value);
    return values;
  };
  py::typing::Dict<py::str, AnyArray> columns;
  columns["context"] = column([](const OpTrace::Op& op) { return op.context; });
  columns["gap"] = column([](const OpTrace::Op& op) { return 1e-9 * op.gap; });
  columns["idle"] = column([](const OpTrace::Op& op) { return 1e-9 * op.idle; });
  columns["duration"] = column([](const OpTrace::Op& op) { return 1e-9 * op.duration; });
  columns["kind"] = column([](const OpTrace::Op& op) { return static_cast<std::uint8_t>(op.kind); });
  columns["step_ends"] = py::array_t<std::uint64_t>(py::cast(watched(job).trace().step_ends));
  return columns;
}

/// Kind, job, begin and end in nanoseconds, number, detail; see Event.
using EventRow = std::tuple<std::string, std::string, std::int64_t, std::int64_t, std::uint64_t, std::string>;

std::vector<EventRow> events(const Runtime& runtime) {
  const std::vector<std::string> names = runtime.state().coordinator.names();
  std::vector<EventRow> rows;
  for (const Event& event : runtime.state().timeline.events()) {
    rows.emplace_back(to_string(event.kind), names[event.job], event.begin.count(), event.end.count(), event.number,
                      event.detail);
  }
  return rows;
}

void write_timeline(const Runtime& runtime, const std::string& path) {
  write_timeline_file(runtime.state().timeline.events(), runtime.state().coordinator.names(), path);
}

std::optional<at::Generator> device_generator(const OpContext& context) {
  return context.device_generator().defined() ? std::optional(context.device_generator()) : std::nullopt;
}

void bind_job(py::module_& module) {
  py::class_<DeviceGraph>(module, "DeviceGraph");
  py::class_<DevicePart>(module, "DevicePart")
      .def_property_readonly("sms", &DevicePart::sms)
      .def_property_readonly("stream", &DevicePart::stream);
  py::class_<JobStats>(module, "JobStats")
      .def_readonly("steps", &JobStats::steps)
      .def_readonly("earlier_steps", &JobStats::earlier_steps)
      .def_readonly("sub_batches", &JobStats::sub_batches)
      .def_readonly("ops", &JobStats::ops)
      .def_readonly("memory_peak", &JobStats::memory_peak)
      .def_readonly("memory_cached", &JobStats::memory_cached)
      .def_property_readonly("waited_s", [](const JobStats& stats) { return to_seconds(stats.waited); })
      .def_property_readonly("core_wait_s", [](const JobStats& stats) { return to_seconds(stats.core_wait); })
      .def_property_readonly("cpu_s", [](const JobStats& stats) { return to_seconds(stats.cpu); })
      .def_property_readonly("input_s", [](const JobStats& stats) { return to_seconds(stats.input); })
      .def_property_readonly("ran_s", [](const JobStats& stats) { return to_seconds(stats.ran); })
      .def_property_readonly("lateness_s", [](const JobStats& stats) {
        return stats.lateness ? std::optional(to_seconds(*stats.lateness)) : std::nullopt;
      });
  py::class_<PeriodStats>(module, "PeriodStats")
      .def_readonly("met", &PeriodStats::met)
      .def_readonly("missed", &PeriodStats::missed)
      .def_readonly("skipped", &PeriodStats::skipped)
      .def_readonly("response", &PeriodStats::response)
      .def_readonly("slack", &PeriodStats::slack)
      .def_property_readonly("worst_lateness_s",
                             [](const PeriodStats& stats) { return to_seconds(stats.worst_lateness); })
      .def_property_readonly("misses", [](const PeriodStats& stats) {
        return std::vector<std::string>(stats.misses.begin(), stats.misses.end());
      });
  py::class_<LatencyStats>(module, "LatencyStats").def_readonly("cannot_hold", &LatencyStats::cannot_hold);
  py::class_<BoundStats>(module, "BoundStats")
      .def_property_readonly(
          "unit", [](const BoundStats& stats) { return stats.unit == BoundUnit::kStep ? "step" : "request"; })
      .def_readonly("windows", &BoundStats::windows)
      .def_readonly("windows_inside", &BoundStats::windows_inside)
      .def_readonly("alone", &BoundStats::alone)
      .def_readonly("loss", &BoundStats::loss)
      .def_readonly("share", &BoundStats::share)
      .def_property_readonly("recent", [](const BoundStats& stats) {
        std::vector<std::tuple<std::int64_t, std::int64_t, double>> windows;
        for (const BoundWindow& window : stats.recent) {
          windows.emplace_back(window.begin.count(), window.end.count(), window.slowdown);
        }
        return windows;
      });
  py::class_<RuntimeJob, std::shared_ptr<RuntimeJob>>(module, "Job")
      .def_property_readonly("name", [](const RuntimeJob& job) { return job.spec().name; })
      .def_property_readonly("profiled_step_s",
                             [](const RuntimeJob& job) {
                               const auto& profile = job.spec().profile;
                               return profile && !profile->answers ? std::optional(profile->step) : std::nullopt;
                             })
      .def_property_readonly("span_ns",
                             [](const RuntimeJob& job) {
                               const auto [began, ended] = job.span();
                               return std::pair(began.count(), ended.count());
                             })
      .def_property_readonly("priority", [](const RuntimeJob& job) { return to_string(job.spec().priority); })
      .def_property_readonly("state", [](const RuntimeJob& job) { return to_string(job.state()); })
      .def_property_readonly("error", &RuntimeJob::error)
      .def_property_readonly("generator", &RuntimeJob::generator)
      .def_property_readonly("device_generator", [](const RuntimeJob& job) { return device_generator(job); })
      .def_property_readonly("sms", &RuntimeJob::sms)
      .def_property_readonly("limits_memory", &RuntimeJob::limits_memory)
      .def_property_readonly("memory_refusals", [](const RuntimeJob& job) { return job.budget().refusals(); })
      .def_property_readonly("memory_held", [](const RuntimeJob& job) { return job.budget().held(); })
      .def_property_readonly("memory_limit",
                             [](const RuntimeJob& job) {
                               const std::int64_t limit = job.budget().limit();
                               return limit == MemoryBudget::kUnlimited ? std::nullopt : std::optional(limit);
                             })
      .def(
          "set_flexible", [](RuntimeJob& job, bool flexible) { job.budget().set_flexible(flexible); },
          py::arg("flexible"))
      .def(
          "refuse_memory_after", [](RuntimeJob& job, std::int64_t requests) { job.budget().refuse_after(requests); },
          py::arg("requests"))
      .def("synchronize", &RuntimeJob::synchronize, Warns())
      .def("open_stream", &RuntimeJob::open_stream)
      .def("take_part", &RuntimeJob::take_part, py::arg("sms"))
      .def("give_out", &RuntimeJob::give_out, py::call_guard<PythonWarnings, py::gil_scoped_release>())
      .def_property_readonly("main_stream",
                             [](const RuntimeJob& job) {
                               const auto stream = job.resources().stream;
                               return stream == nullptr ? 0 : stream->handle();
                             })
      .def(
          "capture",
          [](RuntimeJob& job, const py::typing::Callable<void()>& work) { return job.capture([&] { work(); }); },
          py::arg("work"))
      .def("launch", &RuntimeJob::launch, py::arg("graph"), py::arg("name"), ReleaseGil())
      .def("check_device", &RuntimeJob::check_device, ReleaseGil())
      .def_property_readonly("cancel_requested", &RuntimeJob::cancel_requested)
      .def_property_readonly("is_in_body", &RuntimeJob::is_in_body)
      .def_property_readonly("is_in_op", &RuntimeJob::is_in_op)
      .def("set_forking", &RuntimeJob::set_forking, py::arg("forking"))
      .def_property_readonly("ops_begun", &RuntimeJob::ops_begun)
      .def_property_readonly("is_waiting", &RuntimeJob::is_waiting)
      .def_property_readonly("has_left", &RuntimeJob::has_left)
      .def("stats", &RuntimeJob::stats)
      .def("bound", &RuntimeJob::bound)
      .def(
          "promise", [](RuntimeJob& job, double quantile, Seconds limit) { job.promise({quantile, limit}); },
          py::arg("quantile"), py::arg("limit"), ReleaseGil())
      .def(
          "answered",
          [](RuntimeJob& job, std::int64_t since_arrival, std::int64_t since_taken) {
            job.answered(std::chrono::nanoseconds(since_arrival), std::chrono::nanoseconds(since_taken));
          },
          py::arg("since_arrival"), py::arg("since_taken"))
      .def(
          "given_up",
          [](RuntimeJob& job, std::int64_t since_arrival) { job.given_up(std::chrono::nanoseconds(since_arrival)); },
          py::arg("since_arrival"))
      .def("set_answering", &RuntimeJob::set_answering, py::arg("answers"))
      .def(
          "expect_periods",
          [](RuntimeJob& job, std::optional<Seconds> period, std::optional<Seconds> deadline,
             std::optional<Seconds> unit_time) {
            job.expect_periods(duration(period), duration(deadline), duration(unit_time));
          },
          py::arg("period"), py::arg("deadline"), py::arg("unit_time"), ReleaseGil())
      .def("begin_periods", &RuntimeJob::begin_periods, ReleaseGil())
      .def("await_release", &RuntimeJob::await_release)
      .def("begin_unit", &RuntimeJob::begin_unit, ReleaseGil())
      .def("end_unit", &RuntimeJob::end_unit, ReleaseGil())
      .def("end_periods", &RuntimeJob::end_periods, ReleaseGil())
      .def("periods", &RuntimeJob::periods)
      .def_property_readonly("has_deadline_problem", &RuntimeJob::has_deadline_problem)
      .def("deadline_problem", &RuntimeJob::deadline_problem, ReleaseGil())
      .def("latency", &RuntimeJob::latency)
      .def("gaps", &RuntimeJob::gaps)
      .def("op_profiles", [](const RuntimeJob& job) { return watched(job).profiles(); })
      .def("ops_per_step", [](const RuntimeJob& job) { return watched(job).ops_per_step(); })
      .def("op_trace", &op_trace)
      .def("suspend", &RuntimeJob::suspend)
      .def("resume", &RuntimeJob::resume)
      .def("cancel", &RuntimeJob::cancel, ReleaseGil())
      .def("give_up", &RuntimeJob::give_up, ReleaseGil())
      .def("interrupt",
           [](RuntimeJob& job) {
             bool done = false;
             with_world_stopped([&] { done = job.interrupt(); });
             return done;
           })
      .def("yield_point", &RuntimeJob::yield_point)
      .def("acknowledge_cancel", &RuntimeJob::acknowledge_cancel)
      .def("repeat_cancel", &RuntimeJob::repeat_cancel)
      .def(
          "sleep", [](RuntimeJob& job, Seconds seconds) { job.sleep(from_seconds(seconds)); }, py::arg("seconds"))
      .def("begin_input", &RuntimeJob::begin_input)
      .def("end_input", &RuntimeJob::end_input)
      .def("begin_wait", &RuntimeJob::begin_wait, py::arg("reason"), ReleaseGil())
      .def("end_wait", &RuntimeJob::end_wait, ReleaseGil())
      .def("go_on_after", &RuntimeJob::go_on_after, py::arg("steps"))
      .def("expect_steps", &RuntimeJob::expect_steps, py::arg("more"), py::arg("for_good"))
      .def("set_spilled", &RuntimeJob::set_spilled, py::arg("spilled"))
      .def("begin_step", &RuntimeJob::begin_step)
      .def("end_step", &RuntimeJob::end_step)
      .def("begin_sub_batch", &RuntimeJob::begin_sub_batch)
      .def("end_sub_batch", &RuntimeJob::end_sub_batch)
      .def_property_readonly("has_sub_batches", &RuntimeJob::has_sub_batches)
      .def("exchange_sub_batches", &RuntimeJob::exchange_sub_batches, py::arg("others"));
}

// The fields that Python may set; their names are those of the options in torchshare/runtime/options.py.
void bind_options(py::module_& module) {
  py::class_<RuntimeOptions> options(module, "RuntimeOptions");
  options.def(py::init<>())
      .def_readwrite("policy", &RuntimeOptions::policy)
      .def_property(
          "grace", [](const RuntimeOptions& options) { return to_seconds(options.gate.grace); },
          [](RuntimeOptions& options, Seconds grace) { options.gate.grace = from_seconds(grace); })
      .def_property(
          "device_priority", [](const RuntimeOptions& options) { return to_string(options.device_priority); },
          [](RuntimeOptions& options, const std::string& text) {
            options.device_priority = parse_device_priority(text);
          })
      .def_readwrite("max_slowdown", &RuntimeOptions::max_slowdown)
      .def_readwrite("secondary_share", &RuntimeOptions::secondary_share)
      .def_readwrite("max_concurrent", &RuntimeOptions::max_concurrent)
      .def_readwrite("timeline_capacity", &RuntimeOptions::timeline_capacity)
      .def_readwrite("keep", &RuntimeOptions::keep);
  def_seconds(options, "max_wait", [](auto& object) -> auto& { return object.gate.max_wait; });
  def_seconds(options, "run_ahead", [](auto& object) -> auto& { return object.gate.run_ahead; });
  py::class_<JobSpec> spec(module, "JobSpec");
  def_seconds(spec, "period", [](auto& object) -> auto& { return object.period; });
  def_seconds(spec, "deadline", [](auto& object) -> auto& { return object.deadline; });
  def_seconds(spec, "unit_time", [](auto& object) -> auto& { return object.unit_time; });
  spec.def(py::init<>())
      .def_readwrite("name", &JobSpec::name)
      .def_property(
          "priority", [](const JobSpec& spec) { return to_string(spec.priority); },
          [](JobSpec& spec, const std::string& text) { spec.priority = parse_priority(text); })
      .def_property(
          "start", [](const JobSpec& spec) { return spec.start; },
          [](JobSpec& spec, const py::typing::Union<py::str, py::float_>& start) {
            spec.start = std::string(py::str(py::handle(start)));
          })
      .def_readwrite("after", &JobSpec::after)
      .def_readwrite("threads", &JobSpec::threads)
      .def_readwrite("seed", &JobSpec::seed)
      .def_readwrite("steps", &JobSpec::steps)
      .def_readwrite("slo", &JobSpec::slo)
      .def_readwrite("profile", &JobSpec::profile)
      .def_readwrite("meter_memory", &JobSpec::meter_memory)
      .def_readwrite("memory_budget", &JobSpec::memory_budget)
      .def_readwrite("cache_memory", &JobSpec::cache_memory)
      .def_readwrite("sms", &JobSpec::sms)
      .def_readwrite("record_ops", &JobSpec::record_ops)
      .def_readwrite("ops", &JobSpec::ops);
}

/// `with Serving(job):` see ServingScope.
struct Serving {
  std::shared_ptr<RuntimeJob> job;
  std::unique_ptr<ServingScope> scope;
};

/// `with Adopted(job, threads):` see AdoptedThread.
struct Adopted {
  std::shared_ptr<RuntimeJob> job;
  int threads;  ///< intra-op
  std::unique_ptr<AdoptedThread> thread = nullptr;
};

}  // namespace

void bind_runtime(py::module_& module) {
  bind_job(module);
  bind_options(module);
  py::class_<ProcessCode>(module, "ProcessCode")
      .def(py::init<std::vector<std::string>, std::vector<std::string>>(), py::arg("always"), py::arg("with_turn"))
      .def(
          "raise_in",
          [](const ProcessCode& self, unsigned long thread, const py::typing::Optional<ExceptionType>& type) {
            bool done = false;
            with_world_stopped([&] { done = self.raise_in(thread, type); });
            return done;
          },
          py::arg("thread"), py::arg("type"));
  module.def("stack_of", &stack_of, py::arg("thread"));
  py::class_<Adopted>(module, "Adopted")
      .def(py::init([](RuntimeJob& job, int threads) { return Adopted{job.shared_from_this(), threads}; }),
           py::arg("job"), py::arg("threads"))
      .def("__enter__",
           [](Adopted& self) -> Adopted& {
             self.thread =
                 std::make_unique<AdoptedThread>(*self.job, self.job->language(), self.job->resources(), self.threads);
             return self;
           })
      .def(
          "synchronize", [](Adopted& self) { return self.thread->synchronize(); }, Warns())
      .def_property_readonly("generator", [](const Adopted& self) { return self.thread->context().generator(); })
      .def_property_readonly("device_generator",
                             [](const Adopted& self) { return device_generator(self.thread->context()); })
      .def("__exit__", [](Adopted& self, const ExitArgs&) { self.thread.reset(); });
  py::class_<Serving>(module, "Serving")
      .def(py::init([](RuntimeJob& job) { return Serving{job.shared_from_this(), nullptr}; }), py::arg("job"))
      .def("__enter__",
           [](Serving& self) -> Serving& {
             self.scope = std::make_unique<ServingScope>(self.job->serving_threads(), self.job->spec().threads);
             return self;
           })
      .def(
          "synchronize",
          [](Serving& self) {
            self.scope->synchronize();
            return true;
          },
          Warns())
      .def_property_readonly("generator", [](const Serving& self) { return self.scope->context().generator(); })
      .def_property_readonly("device_generator",
                             [](const Serving& self) { return device_generator(self.scope->context()); })
      .def("__exit__", [](Serving& self, const ExitArgs&) { self.scope.reset(); });
  py::class_<Runtime>(module, "Runtime")
      .def(py::init([](const std::string& device, const RuntimeOptions& options) {
             return std::make_unique<Runtime>(make_device(device), options);
           }),
           py::arg("device"), py::arg("options"))
      .def("submit", &submit, py::arg("function"), py::arg("spec"), py::arg("cancelled_type"),
           py::arg("budget_exceeded_type"), py::arg("process_code"), py::arg("replaces") = std::nullopt)
      .def("start", &Runtime::start, ReleaseGil())
      .def(
          "wait", [](Runtime& runtime, Seconds timeout) { return runtime.wait(from_seconds(timeout)); },
          py::arg("timeout"), ReleaseGil())
      .def("cancel_all", &Runtime::cancel_all, ReleaseGil())
      .def("begin_close", &Runtime::begin_close, ReleaseGil())
      .def(
          "close", [](Runtime& runtime, Seconds patience) { return runtime.close(from_seconds(patience)); },
          py::arg("patience"), ReleaseGil())
      .def_property_readonly("device", [](const Runtime& runtime) { return runtime.state().device->name(); })
      .def_property_readonly("dropped_events",
                             [](const Runtime& runtime) { return runtime.state().timeline.dropped(); })
      .def(
          "follow_orders", [](const Runtime& runtime) { runtime.state().coordinator.follow_orders(); }, ReleaseGil())
      .def(
          "keep_orders", [](const Runtime& runtime) { runtime.state().coordinator.keep_orders(); }, ReleaseGil())
      .def("take_orders", &take_orders)
      .def("obey", &obey, py::arg("job"), py::arg("action"), py::arg("reason"), ReleaseGil())
      .def("pace", &pace)
      .def("set_pace", &set_pace, py::arg("share"), py::arg("cycle"), py::arg("age"), ReleaseGil())
      .def("events", &events)
      .def("write_timeline", &write_timeline, py::arg("path"), ReleaseGil());
}

}  // namespace torchshare::bindings
