// Faults: the signal handler redirects the thread to a landing that reports a finding and leaves the fiber.
#include "fault.h"

#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "fiber.h"
#include "memory.h"
#include "processor.h"
#include "report.h"

namespace emulator {

Site operation_site;

namespace {

constexpr int kSignals[kFaultSignals] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
alignas(16) unsigned char signal_stack[64 << 10], landing_stack[64 << 10];

constexpr int kTick = SIGVTALRM;
// Interval once the time limit has passed, because a tick may interrupt the runtime.
constexpr long kTickNanoseconds = 10'000'000;

int fault_signal;
uintptr_t fault_address, fault_instruction;
double most_seconds;

struct Code {
  uintptr_t begin, end;
} kernel_code;  // code range of the kernel's shared object

// In checked mode the faulting access has usually been reported already.
void report_address(Site site) {
  auto const address = fault_address;
  if (in_shared_map(block->shared, address)) {
    if (checked() && is_known("out_of_bounds", "shared")) return;
    int64_t const offset = int64_t(address - reinterpret_cast<uintptr_t>(block->shared.base));
    set_place(report("out_of_bounds", site, "access at shared offset %lld of %u", static_cast<long long>(offset),
                     block->shared.size),
              "shared", offset);
  } else if (Buffer const* buffer = find_buffer(address)) {
    int64_t const offset = int64_t(address - buffer->begin), size = int64_t(buffer->end - buffer->begin);
    if (checked() && (is_known("out_of_bounds", buffer->name) || is_known("read_only", buffer->name))) return;
    bool const inside = offset >= 0 && offset < size;
    set_place(report(inside ? "read_only" : "out_of_bounds", site,
                     inside ? "write to %s at offset %lld of %lld" : "access to %s at offset %lld of %lld",
                     buffer->name, static_cast<long long>(offset), static_cast<long long>(size)),
              buffer->name, offset);
  } else if (in_fiber_stack(address)) {
    report("stack_overflow", site, "a thread's local variables exceed the emulator's stack of 124 KB");
  } else {
    report("out_of_bounds", site, "access to address %#llx, which is no buffer's",
           static_cast<unsigned long long>(address));
  }
}

void land() {
  Site const instruction = Site::instruction(reinterpret_cast<void const*>(fault_instruction));
  Site const site = operation_site.bits ? operation_site : instruction;
  operation_site = {};
  if (fault_signal == SIGILL)
    report("undefined_behaviour", site, "array bounds, alignment or shift width");
  else if (fault_signal == SIGTRAP)  // on aarch64, a division by zero also traps this way
    report("undefined_behaviour", site, "array bounds, shift width or integer division by zero");
  else if (fault_signal == SIGFPE)
    report("undefined_behaviour", site, "integer division by zero");
  else if (fault_signal == kTick)
    // As for a return address.
    report("endless", Site::instruction(reinterpret_cast<void const*>(fault_instruction + 1)),
           "still running after %g s of CPU time: a loop that does not end, or polls by a plain load, which lets no "
           "other thread run",
           most_seconds);
  else
    report_address(site);
  stop();
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (!current) {  // the emulator itself faulted
    ::signal(signal, SIG_DFL);
    return;
  }
  fault_signal = signal;
  fault_address = reinterpret_cast<uintptr_t>(info->si_addr);
  fault_instruction = divert(context, land, landing_stack + sizeof landing_stack);
}

// Only kernel code may be abandoned anywhere; the runtime and the C library may hold state that the next launch needs.
void on_tick(int signal, siginfo_t*, void* context) {
  uintptr_t const at = instruction_of(context);
  if (!current || at < kernel_code.begin || at >= kernel_code.end) return;
  fault_signal = signal;
  fault_instruction = divert(context, land, landing_stack + sizeof landing_stack);
}

// The code range of the object that contains the kernel's entry.
int find_code(dl_phdr_info* object, size_t, void*) {
  auto const entry = reinterpret_cast<uintptr_t>(grid.entry);
  for (int i = 0; i < object->dlpi_phnum; i++) {
    auto const& part = object->dlpi_phdr[i];
    uintptr_t const begin = object->dlpi_addr + part.p_vaddr, end = begin + part.p_memsz;
    if (part.p_type != PT_LOAD || entry < begin || entry >= end) continue;
    kernel_code = {begin, end};
    return 1;
  }
  return 0;
}

}  // namespace

FaultHandler::FaultHandler() {
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &stack_before_);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < kFaultSignals; i++) sigaction(kSignals[i], &action, &before_[i]);
}

FaultHandler::~FaultHandler() {
  for (int i = 0; i < kFaultSignals; i++) sigaction(kSignals[i], &before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
}

Patience::Patience(double seconds) {
  if (seconds <= 0) return;
  most_seconds = seconds;
  dl_iterate_phdr(find_code, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_tick;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  sigaction(kTick, &action, &before_);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = kTick;
  event._sigev_un._tid = pid_t(syscall(SYS_gettid));
  auto const whole = time_t(seconds);
  itimerspec const when{{0, kTickNanoseconds}, {whole, long((seconds - double(whole)) * 1e9)}};
  armed_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
  if (armed_) timer_settime(timer_, 0, &when, nullptr);
}

Patience::~Patience() {
  if (most_seconds == 0) return;
  most_seconds = 0;
  if (armed_) timer_delete(timer_);
  sigaction(kTick, &before_, nullptr);
}

}  // namespace emulator
