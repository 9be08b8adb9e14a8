#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include "hook/op_context.h"

namespace torchshare {

// Note [The hook's key]
// `Fake` is a dispatch key that torch itself leaves free (FakeTensor uses `Python`). It sits below autograd and above
// the backends, so a kernel on it sees forward, backward and optimizer ops alike. It is switched on per thread, by
// ContextScope; other threads never come here.
inline constexpr c10::DispatchKey kHookKey = c10::DispatchKey::Fake;

inline c10::DispatchKeySet after_hook(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHookKey);
}

/// Registers the hook with torch's dispatcher, once per process: typed kernels for hot ops, fall-through for views,
/// a boxed fallback for the rest. Call before the first ContextScope, while the process has no other threads that fork.
/// Any thread.
void install_op_hook();

/// Registers the typed kernels; part of install_op_hook.
void install_hot_ops();

}  // namespace torchshare
