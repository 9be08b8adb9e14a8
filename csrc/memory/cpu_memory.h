#pragma once

namespace torchshare {

/// Wraps torch's CPU allocator in ours. Once per process; further calls do nothing.
void install_cpu_memory();

}  // namespace torchshare
