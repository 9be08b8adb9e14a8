#pragma once

#include <memory>
#include <utility>

#include "device/device.h"
#include "hook/op_context.h"
#include "runtime/job_thread.h"
#include "runtime/language_binding.h"
#include "runtime/serving_threads.h"

namespace torchshare {

/// The calling thread counts as one that a job has started, until the destructor: its random ops draw from the job's
/// generators, and on an asynchronous device it launches on the job's stream, as all threads of a program launch on
/// one. Its ops are counted, not gated. Same thread. The job must outlive it, not its body.
class AdoptedThread {
 public:
  /// `resources`: empty if the job's body has ended.
  AdoptedThread(OpContext& job, const LanguageBinding& language, const JobResources& resources, int intra_op_threads)
      : context_(job, language.for_thread(), resources),
        on_stream_(resources.stream == nullptr ? nullptr : resources.stream->use()),
        scope_(context_) {
    change_intra_op_threads(intra_op_threads);
  }
  AdoptedThread(const AdoptedThread&) = delete;  // bound to a thread
  AdoptedThread& operator=(const AdoptedThread&) = delete;

  /// Waits until the device has done what the job has launched. Returns false if the job's body has ended.
  bool synchronize() { return context_.synchronize(); }
  const OpContext& context() const { return context_; }

 private:
  class Ungated final : public OpContext {
   public:
    Ungated(OpContext& job, std::unique_ptr<LanguageBinding> language, const JobResources& resources)
        : OpContext(job.slot(), job.generator()),
          job_(job),
          language_(std::move(language)),
          launches_on_(resources.stream) {
      slot_.interrupts = kCounted;
      device_generator_ = resources.device_generator;
    }

    bool synchronize() {
      const auto stream = launches_on_.lock();
      if (stream != nullptr) {
        without_lock(*language_, [&] { stream->synchronize(); });
      }
      return stream != nullptr;
    }

   private:
    void handle_interrupts() override {
      job_.begin_adopted_op();
      if (const auto stream = launches_on_.lock()) {
        if (stream->is_capturing()) {  // else the op would become a part of the graph
          without_lock(*language_, [&] { stream->wait_for_capture(); });
        }
        stream->follow_current();
      }
    }

    OpContext& job_;
    const std::unique_ptr<LanguageBinding> language_;
    const std::weak_ptr<DeviceStream> launches_on_;  // the thread may outlive the job
  };

  Ungated context_;
  const std::unique_ptr<ThreadScope> on_stream_;
  const ContextScope scope_;
};

}  // namespace torchshare
