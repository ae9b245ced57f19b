// Conversion of faults and infinite loops of a kernel into findings.
#pragma once
#include <signal.h>
#include <time.h>

#include "runtime_api.h"

namespace emulator {

// The site of the emulated operation in progress, at which a fault is reported; may be empty.
extern Site operation_site;

constexpr int kFaultSignals = 5;

// While this object exists, SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGTRAP in the running fiber end the launch with a
// finding.
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
  FaultHandler(FaultHandler const&) = delete;

 private:
  struct sigaction before_[kFaultSignals];
  stack_t stack_before_;
};

// While this object exists, exceeding the CPU time limit of this thread ends the launch with a finding.
class Patience {
 public:
  explicit Patience(double seconds);  // 0: no limit
  ~Patience();
  Patience(Patience const&) = delete;

 private:
  struct sigaction before_;
  timer_t timer_;
  bool armed_ = false;
};

}  // namespace emulator
