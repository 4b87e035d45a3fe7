/* The shortest decimal that reads back as the same double, written as Python's repr and json write it. */
#ifndef MSPROBE_SHORTEST_H
#define MSPROBE_SHORTEST_H

#define SHORTEST_MIN_POWER (-292)
#define SHORTEST_POWERS 617
#define SHORTEST_SIZE 26 /* the most characters of one number */

/* Once: powers_of_ten() of shortest.py, SHORTEST_POWERS little-endian numbers of 128 bits. */
void shortest_init(const void *powers);

/* Writes a finite number, without a terminating zero; returns where it ends. */
char *shortest_write(char *to, double value);

#endif
