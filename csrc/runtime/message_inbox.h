#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>

#include "device/clock.h"
#include "runtime/inbox.h"
#include "runtime/job_message.h"

namespace torchshare {

/// The messages of running jobs to the coordinator's thread, which `announce` wakes. A job that sends one
/// takes no lock, and a step or an answer wakes the thread only if it would not look soon, because a wake costs the
/// running job time. After messages, the thread looks once more. Any thread.
class MessageInbox {
 public:
  /// Returns false without memory.
  bool put(const JobMessage& message) noexcept {
    try {
      messages_.put(message);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  /// Called after `put`.
  void announce(const JobMessage& message) {
    using Kind = JobMessage::Kind;
    const bool is_step = message.kind == Kind::kStepped || message.kind == Kind::kSteppedAfterRequest ||
                         message.kind == Kind::kAnswered || message.kind == Kind::kGivenUp;
    if (!is_step || message.at + interval_.load() < next_look_.load()) {
      wake();
    }
  }
  /// How long steps and answers may wait for the coordinator's thread.
  void set_interval(std::chrono::nanoseconds interval) { interval_.store(interval); }

  /// Returns whether there were messages. Called by one thread at a time; see Inbox::drain.
  template <class Use>
  bool drain(Use use) {
    bool any = false;
    messages_.drain([&](const JobMessage& message) {
      any = true;
      had_messages_.store(true, std::memory_order_relaxed);
      use(message);
    });
    return any;
  }

  // The coordinator's thread.
  void wake() { wake_.notify_all(); }
  /// Calls `serve_once`, which returns when to call it again, until `dismiss`, and then once more.
  template <class ServeOnce>
  void serve(Clock& clock, ServeOnce serve_once) {
    while (!dismissed_.load()) {
      const std::uint32_t seen = wake_.value();
      auto next = serve_once();
      if (had_messages_.exchange(false, std::memory_order_relaxed)) {
        next = std::min(next, clock.now() + interval_.load());
      }
      next_look_.store(next);
      // A message that came before that, and was not announced, is seen here.
      if (messages_.is_empty() && !dismissed_.load()) {
        clock.wait(wake_, seen, next);
      }
    }
    serve_once();
  }
  void dismiss() {
    dismissed_.store(true);
    wake();
  }

 private:
  Inbox<JobMessage> messages_;
  EventCount wake_;
  std::atomic<std::chrono::nanoseconds> next_look_{kNever};  // of the thread, if nothing wakes it
  std::atomic<bool> had_messages_{false};                    // since then
  std::atomic<std::chrono::nanoseconds> interval_{std::chrono::nanoseconds(0)};
  std::atomic<bool> dismissed_{false};
};

}  // namespace torchshare
