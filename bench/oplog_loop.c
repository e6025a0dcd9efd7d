/* The loop that an oplog of 25-byte records is compared with: one write(2) and one lseek(2) for each
 * record, as in the article that the format is from. Prints records/s. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **arguments) {
    if (count != 3) return 2;
    long records = atol(arguments[2]);
    int file = open(arguments[1], O_CREAT | O_TRUNC | O_RDWR, 0640);
    if (file < 0) return 1;
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long n = 0; n < records; n++) {
        unsigned char record[25];
        uint64_t id = n + 1, key = n % 150001 + 1, table = 7;
        memcpy(record, &id, 8);
        memcpy(record + 8, &key, 8);
        memcpy(record + 16, &table, 8);
        record[24] = 1;
        if (write(file, record, 25) != 25) return 1;
        if (lseek(file, 0, SEEK_END) < 0) return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9;
    printf("%.0f\n", records / seconds);
    return 0;
}
