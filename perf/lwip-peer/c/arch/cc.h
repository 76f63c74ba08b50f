#ifndef ARCH_CC_H
#define ARCH_CC_H

#include <stdlib.h>

unsigned int lwip_peer_random(void);
#define LWIP_RAND() lwip_peer_random()
#define LWIP_PLATFORM_DIAG(x) do { } while (0)
#define LWIP_PLATFORM_ASSERT(x) abort()

#endif
