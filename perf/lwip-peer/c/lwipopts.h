/* lwIP as a PPPoE client without an operating system: one thread, memory from the C library, time from the caller. */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define MEM_LIBC_MALLOC 1
#define MEMP_MEM_MALLOC 1
#define MEM_ALIGNMENT 8

#define LWIP_TCP 0
#define LWIP_UDP 1
#define LWIP_DHCP 0
#define LWIP_DNS 1
#define LWIP_IPV6 1
#define LWIP_IPV6_DHCP6 0
#define IPV6_FRAG_COPYHEADER 1
#define LWIP_STATS 0

#define PPP_SUPPORT 1
#define PPPOE_SUPPORT 1
#define PPPOS_SUPPORT 0
#define PPPOL2TP_SUPPORT 0
#define PAP_SUPPORT 1
#define CHAP_SUPPORT 1
#define MSCHAP_SUPPORT 0
#define EAP_SUPPORT 0
#define VJ_SUPPORT 0
#define PPP_IPV4_SUPPORT 1
#define PPP_IPV6_SUPPORT 1
#define LCP_ECHOINTERVAL 30
#define LCP_MAXECHOFAILS 3

#endif
