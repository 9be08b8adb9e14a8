#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include "hook/op_context.h"

namespace torch {
class Library;
}  // namespace torch

namespace torchshare {

// Note [The hook's key]
// `DeferredInit` is a dispatch key that torch 2.11 to 2.15 define and never use (it was torchdistx's). It sits above
// autograd and autocast, so a kernel on it sees forward, backward and optimizer ops alike, each before autograd records
// it. Composite ops (linear, dropout) reach it as well; they fall through, and the ops they are made of are hooked.
// (`Fake`, which earlier versions of torchshare used, is torch's own since 2.15. Below autograd no other key is free
// that factories pass: their BackendSelect kernels redispatch to a backend's key only.)
// Inside the handler of a TorchDispatchMode torch excludes every key above Python: the ops there run on the permit of
// the op that called the handler, and random ops without a generator argument draw from the default generator. The key
// is switched on per thread, by ContextScope; other threads never get here.
inline constexpr c10::DispatchKey kHookKey = c10::DispatchKey::DeferredInit;

inline c10::DispatchKeySet after_hook(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHookKey);
}

/// Registers the hook with torch's dispatcher, once per process: typed kernels for hot ops, fall-through for views,
/// a boxed fallback for the rest. Call before the first ContextScope, while the process has no other threads that fork.
/// Any thread.
void install_op_hook();

/// Registers the typed kernels; part of install_op_hook.
void install_hot_ops(torch::Library& library);

}  // namespace torchshare
