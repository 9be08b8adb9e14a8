#pragma once

namespace torchshare {

/// Without a GPU, torch traces with a stand-in for CUDA's device guard. torch 2.11 creates it when a thread first
/// traces, registers a pointer to it for the whole process, and destroys it with that thread. This function registers
/// one that is never destroyed. Any thread, before the first tracing.
void keep_cuda_stand_in();

}  // namespace torchshare
