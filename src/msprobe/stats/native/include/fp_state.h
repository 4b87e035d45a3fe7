/* The process may have set the CPU to flush subnormal numbers (torch.set_flush_denormal); we must count them. */
#ifndef MSPROBE_FP_STATE_H
#define MSPROBE_FP_STATE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#if defined(__x86_64__)
typedef unsigned fp_state;
static inline fp_state fp_exact(void) {
    fp_state before = _mm_getcsr();
    if (before & 0x8040) _mm_setcsr(before & ~0x8040u);
    return before;
}
static inline void fp_restore(fp_state before) {
    if (before & 0x8040) _mm_setcsr(before);
}
#elif defined(__aarch64__)
typedef uint64_t fp_state;
static inline fp_state fp_exact(void) {
    fp_state before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before & (1u << 24)) __asm__ volatile("msr fpcr, %0" : : "r"(before & ~(fp_state)(1u << 24)));
    return before;
}
static inline void fp_restore(fp_state before) {
    if (before & (1u << 24)) __asm__ volatile("msr fpcr, %0" : : "r"(before));
}
#else
typedef int fp_state;
static inline fp_state fp_exact(void) {
    return 0;
}
static inline void fp_restore(fp_state before) {
    (void)before;
}
#endif

#endif
