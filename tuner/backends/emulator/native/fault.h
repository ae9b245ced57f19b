// Faults of a kernel become findings, and so does a kernel that spins.
#pragma once
#include <signal.h>
#include <time.h>

#include "runtime_api.h"

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

// While it lives, the running fiber ends the launch with a finding once this thread has used so much CPU time.
class Patience {
 public:
  explicit Patience(double seconds);  // 0: without end
  ~Patience();
  Patience(Patience const&) = delete;

 private:
  struct sigaction before_;
  timer_t timer_;
  bool armed_ = false;
};

}  // namespace emulator
