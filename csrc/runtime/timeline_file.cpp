#include "runtime/timeline_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace torchshare {
namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

double microseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Spans of one kind never overlap within a job, so each kind gets its own track. Spans of a kind have one name, so that
// a viewer adds them up. `number` is unique.
std::string entry(const Event& event, std::size_t number, std::chrono::nanoseconds origin) {
  const auto kind = to_string(event.kind);
  const int track = static_cast<int>(event.kind);
  const double begin = microseconds(event.begin - origin);
  if (event.kind == EventKind::kMemory) {
    return fmt::format(R"({{"name":"memory","ph":"C","pid":{},"ts":{:.3f},"args":{{"MiB":{:.3f}}}}})", event.job, begin,
                       static_cast<double>(event.number) / (1 << 20));
  }
  if (event.kind == EventKind::kRequest) {  // they overlap
    const auto ends = [&](char phase, std::chrono::nanoseconds at) {
      return fmt::format(R"({{"name":"request","cat":"request","ph":"{}","id":{},"pid":{},"tid":{},"ts":{:.3f},)"
                         R"("args":{{"queued_ms":{:.3f}}}}})",
                         phase, number, event.job, track, microseconds(at - origin),
                         static_cast<double>(event.number) / 1e6);
    };
    return ends('b', event.begin) + ",\n" + ends('e', event.end);
  }
  if (is_span(event.kind)) {
    const auto name = event.detail.empty() ? std::string(kind) : fmt::format("{}: {}", kind, event.detail);
    return fmt::format(
        R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{"number":{}}}}})",
        json_string(name), kind, event.job, track, begin, microseconds(event.end - event.begin), event.number);
  }
  return fmt::format(R"({{"name":{},"cat":"{}","ph":"i","s":"p","pid":{},"tid":{},"ts":{:.3f}}})",
                     json_string(event.detail), kind, event.job, track, begin);
}

std::string names(std::size_t job, const std::string& name) {
  auto out = fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":{}}}}})", job, json_string(name));
  for (int track = 0; track <= static_cast<int>(EventKind::kDecision); ++track) {
    if (track == static_cast<int>(EventKind::kMemory) || track == static_cast<int>(EventKind::kRequest)) {
      continue;  // counters and events that overlap have tracks of their own
    }
    out += fmt::format(
        ",\n"
        R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
        job, track, to_string(static_cast<EventKind>(track)));
  }
  return out;
}

}  // namespace

void write_timeline_file(std::span<const Event> events, std::span<const std::string> job_names,
                         const std::string& path) {
  std::ofstream file(path);
  file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  for (std::size_t job = 0; job < job_names.size(); ++job) {
    file << std::exchange(separator, ",\n") << names(job, job_names[job]);
  }
  const auto first =
      std::min_element(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.begin < b.begin; });
  for (std::size_t number = 0; number < events.size(); ++number) {
    file << std::exchange(separator, ",\n") << entry(events[number], number, first->begin);
  }
  file << "\n]}\n";
  file.close();
  if (!file) {
    throw std::runtime_error(std::strerror(errno));
  }
}

}  // namespace torchshare
