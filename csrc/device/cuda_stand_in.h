#pragma once

namespace torchshare {

/// Without a GPU, torch traces with a stand-in for CUDA's device guard. torch 2.11 makes it when a thread first traces,
/// puts a pointer to it into a registry of the process, and destroys it with that thread. This puts one there first
/// that stays. Any thread, before the first tracing.
void keep_cuda_stand_in();

}  // namespace torchshare
