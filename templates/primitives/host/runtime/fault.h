// Faults of a kernel become findings.
#pragma once
#include <signal.h>

#include "api.h"

namespace emulator {

// The operation that the emulator performs at present, and that a fault is to be reported at; or none.
extern Site operation_site;

constexpr int kFaultSignals = 5;

// While it lives, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGTRAP of the running fiber end the launch with a finding.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(FaultHandler const&) = delete;

 private:
  struct sigaction before_[kFaultSignals];
  stack_t stack_before_;
};

}  // namespace emulator
