/* Writes the shortest decimal that reads back as the same double, in the format of Python's repr and json. */
#ifndef MSPROBE_SHORTEST_H
#define MSPROBE_SHORTEST_H

#define SHORTEST_MIN_POWER (-292)
#define SHORTEST_POWERS 617
#define SHORTEST_SIZE 26 /* the maximum number of characters */

/* Call once, with powers_of_ten() of shortest.py: SHORTEST_POWERS little-endian numbers of 128 bits. */
void shortest_init(const void *powers);

/* Writes a finite number, without a terminating zero; returns the end. */
char *shortest_write(char *to, double value);

#endif
