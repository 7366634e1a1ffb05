// C interface of one Verilated model, for `model.rs`. Compiled with FERROCE_PORTS (one `case` per port) and, for waves,
// FERROCE_TRACE (the trace class).
#include "Vtop.h"
#include "verilated.h"

// Each instance has a context of its own: two of them may run in two threads.
struct Instance {
    VerilatedContext context;
    Vtop* top;
#ifdef FERROCE_TRACE
    FERROCE_TRACE* trace = nullptr;
#endif
    Instance() {
        context.traceEverOn(true);
        top = new Vtop{&context};
    }
    ~Instance() {
        top->final();
#ifdef FERROCE_TRACE
        if (trace) trace->close();
        delete trace;
#endif
        delete top;
    }
};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* ferroce_new() { return new Instance; }
EXPORT void ferroce_delete(void* h) { delete static_cast<Instance*>(h); }
EXPORT void ferroce_eval(void* h) { static_cast<Instance*>(h)->top->eval(); }

EXPORT void* ferroce_port(void* h, int index) {
    Vtop* top = static_cast<Instance*>(h)->top;
    switch (index) { FERROCE_PORTS }
    return nullptr;
}

EXPORT void ferroce_trace(void* h, const char* path) {
#ifdef FERROCE_TRACE
    Instance* i = static_cast<Instance*>(h);
    i->trace = new FERROCE_TRACE;
    i->top->trace(i->trace, 99);
    i->trace->open(path);
#endif
}

EXPORT void ferroce_dump(void* h) {
#ifdef FERROCE_TRACE
    Instance* i = static_cast<Instance*>(h);
    if (i->trace) i->trace->dump(i->context.time());
    i->context.timeInc(1);
#endif
}

EXPORT void ferroce_coverage(void* h, const char* path) {
#if VM_COVERAGE
    static_cast<Instance*>(h)->context.coveragep()->write(path);
#endif
}
