/* Notes what a server has on disk: after each fsync and fdatasync it writes the inode and the
 * length of the file into the file named by POWERCUT_FILE, a record of two 64-bit numbers for
 * each. A test that kills the server then cuts its files to what was noted, as a power cut does
 * with what only the kernel had. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int notes = -1;

__attribute__((constructor)) static void open_file(void) {
	const char *name = getenv("POWERCUT_FILE");
	if (name)
		notes = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int sync_and_note(long call, int fd) {
	/* The length is read before: what is written meanwhile may not be on disk. */
	struct stat file;
	int known = fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
	int status = syscall(call, fd);
	if (status == 0 && known && notes >= 0) {
		int64_t note[2] = {(int64_t)file.st_ino, (int64_t)file.st_size};
		if (write(notes, note, sizeof note) != (ssize_t)sizeof note)
			abort();
	}
	return status;
}

int fsync(int fd) { return sync_and_note(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_and_note(SYS_fdatasync, fd); }
