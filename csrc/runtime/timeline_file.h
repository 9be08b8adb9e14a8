#pragma once

#include <span>
#include <string>

#include "model/event.h"

namespace torchshare {

/// Writes `events` in Chrome's trace-event format, which https://ui.perfetto.dev opens: a group of tracks per job,
/// named `job_names[event.job]`. Times count from the first event. The file is written completely or not at all. Throws
/// std::runtime_error that names the path.
void write_timeline_file(std::span<const Event> events, std::span<const std::string> job_names,
                         const std::string& path);

}  // namespace torchshare
