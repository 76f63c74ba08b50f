/* Preloaded into linux.uml by the lab (see guest.rs).
 *
 * User-Mode Linux 6.1 keeps a guest process's extended processor state in a buffer of fixed size and writes it back
 * with PTRACE_SETREGSET / NT_X86_XSTATE. The host kernel takes nothing but a whole XSAVE image there, and on a
 * processor with AMX the image is larger than that buffer: the call fails with EFAULT and the guest panics.
 *
 * So a short image is completed here. What is missing is the tail, and an all-zero tail is right: the header inside
 * the part we were given has no bit set for the components that would lie in it, so they get their initial state.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

/* More than any image today (11,008 bytes with AMX); a host with a larger one keeps the original behaviour. */
#define IMAGE_MAX 32768

typedef long (*ptrace_call)(enum __ptrace_request, pid_t, void *, void *);

static ptrace_call libc_ptrace;
static size_t image_size; /* 0: not asked yet */
static unsigned char image[IMAGE_MAX] __attribute__((aligned(64)));

static long set_xstate(pid_t pid, void *regset, struct iovec *given)
{
	struct iovec whole = { image, sizeof image };

	if (image_size == 0) {
		if (libc_ptrace(PTRACE_GETREGSET, pid, regset, &whole) < 0)
			return -1;
		image_size = whole.iov_len;
	}
	if (given->iov_len >= image_size)
		return libc_ptrace(PTRACE_SETREGSET, pid, regset, given);
	memcpy(image, given->iov_base, given->iov_len);
	memset(image + given->iov_len, 0, image_size - given->iov_len);
	whole.iov_len = image_size;
	return libc_ptrace(PTRACE_SETREGSET, pid, regset, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list list;
	pid_t pid;
	void *addr, *data;

	if (!libc_ptrace)
		libc_ptrace = (ptrace_call)dlsym(RTLD_NEXT, "ptrace");
	/* The C library's own ptrace reads these three too, whatever the request. */
	va_start(list, request);
	pid = va_arg(list, pid_t);
	addr = va_arg(list, void *);
	data = va_arg(list, void *);
	va_end(list);

	if (request == PTRACE_SETREGSET && (size_t)addr == NT_X86_XSTATE)
		return set_xstate(pid, addr, data);
	return libc_ptrace(request, pid, addr, data);
}
