// For benchmarks/instructions_of_steps.py: counts instructions of Python code under callgrind --instr-atstart=no.
#include <valgrind/callgrind.h>

extern "C" {

void torchshare_count_begin() {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT("before");  // CALLGRIND_ZERO_STATS makes the next counts negative after another thread's
}

/// `name` must stay valid until the program's end: callgrind reads it later.
void torchshare_count_end(const char* name) {
  CALLGRIND_DUMP_STATS_AT(name);
  CALLGRIND_STOP_INSTRUMENTATION;
}
}
