#pragma once

#include <span>
#include <string>

#include "model/event.h"

namespace torchshare {

/// Writes `events` in Chrome's trace-event format, which https://ui.perfetto.dev opens: a group of tracks per job,
/// named `job_names[event.job]`. Times count from the first event. Throws std::runtime_error that says why it
/// could not be written completely.
void write_timeline_file(std::span<const Event> events, std::span<const std::string> job_names,
                         const std::string& path);

}  // namespace torchshare
