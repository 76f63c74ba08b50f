/*
 * What Rust sees of DPDK. Three kinds of things live here:
 *
 *  - `struct shim_mbuf`, a flat view of `struct rte_mbuf` with the same layout (shim.c refuses to compile otherwise). DPDK
 *    nests these fields differently from release to release; the flat view keeps one set of names for all of them.
 *  - functions around DPDK's static inline functions. On the packet path each of them is one call per burst.
 *  - control functions that fill DPDK's large configuration structures in C, so that their layout stays out of Rust.
 *
 * Control functions return 0 or a negative errno value, whatever convention the DPDK function has.
 */
#ifndef SHIM_H
#define SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rte_common.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

/* The option is called RTE_IOVA_AS_PA up to 22.11 and RTE_IOVA_IN_MBUF from 23.03 on. */
#if defined(RTE_IOVA_IN_MBUF)
#define SHIM_IOVA_IN_MBUF RTE_IOVA_IN_MBUF
#else
#define SHIM_IOVA_IN_MBUF RTE_IOVA_AS_PA
#endif

struct shim_mbuf {
	void *buf_addr;
#if SHIM_IOVA_IN_MBUF
	uint64_t buf_iova;
#else
	struct rte_mbuf *next;
#endif
	uint16_t data_off;
	uint16_t refcnt;
	uint16_t nb_segs;
	uint16_t port;
	uint64_t ol_flags;
	uint32_t packet_type;
	uint32_t pkt_len;
	uint16_t data_len;
	uint16_t vlan_tci;
	uint32_t hash_rss;
	uint32_t hash_fdir_hi;
	uint16_t vlan_tci_outer;
	uint16_t buf_len;
	struct rte_mempool *pool;
	/* second cache line */
#if SHIM_IOVA_IN_MBUF
	struct rte_mbuf *next;
#else
	uint64_t dynfield2;
#endif
	uint64_t tx_offload;
	void *shinfo;
	uint16_t priv_size;
	uint16_t timesync;
	uint32_t dynfield1[9];
} __attribute__((aligned(RTE_CACHE_LINE_MIN_SIZE)));

/* One field of a C structure, for the test that compares the layouts. */
struct shim_field {
	const char *name;
	size_t offset;
	size_t size;
};
size_t shim_rte_mbuf_size(void);
const struct shim_field *shim_rte_mbuf_fields(size_t *count);
size_t shim_rte_eth_xstat_size(void);
const struct shim_field *shim_rte_eth_xstat_fields(size_t *count);
size_t shim_rte_eth_xstat_name_size(void);

/* Constants that bindgen cannot evaluate from the macros themselves. */
static const uint16_t SHIM_PKTMBUF_HEADROOM = RTE_PKTMBUF_HEADROOM;
static const uint32_t SHIM_VERSION = RTE_VERSION;
static const uint32_t SHIM_LCORE_ID_ANY = LCORE_ID_ANY;
static const int32_t SHIM_SOCKET_ID_ANY = SOCKET_ID_ANY;
static const uint32_t SHIM_RING_NAMESIZE = RTE_RING_NAMESIZE;
static const uint32_t SHIM_MEMPOOL_NAMESIZE = RTE_MEMPOOL_NAMESIZE;
static const uint32_t SHIM_MEMPOOL_CACHE_MAX_SIZE = RTE_MEMPOOL_CACHE_MAX_SIZE;
static const uint32_t SHIM_RING_F_SP_ENQ = RING_F_SP_ENQ;
static const uint32_t SHIM_RING_F_SC_DEQ = RING_F_SC_DEQ;
static const uint32_t SHIM_RING_F_EXACT_SZ = RING_F_EXACT_SZ;

static const uint64_t SHIM_MBUF_RX_VLAN = RTE_MBUF_F_RX_VLAN;
static const uint64_t SHIM_MBUF_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
static const uint64_t SHIM_MBUF_RX_QINQ = RTE_MBUF_F_RX_QINQ;
static const uint64_t SHIM_MBUF_RX_QINQ_STRIPPED = RTE_MBUF_F_RX_QINQ_STRIPPED;
static const uint64_t SHIM_MBUF_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint64_t SHIM_MBUF_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t SHIM_MBUF_RX_IP_CKSUM_GOOD = RTE_MBUF_F_RX_IP_CKSUM_GOOD;
static const uint64_t SHIM_MBUF_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t SHIM_MBUF_RX_IP_CKSUM_NONE = RTE_MBUF_F_RX_IP_CKSUM_NONE;
static const uint64_t SHIM_MBUF_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t SHIM_MBUF_RX_L4_CKSUM_GOOD = RTE_MBUF_F_RX_L4_CKSUM_GOOD;
static const uint64_t SHIM_MBUF_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t SHIM_MBUF_RX_L4_CKSUM_NONE = RTE_MBUF_F_RX_L4_CKSUM_NONE;
static const uint64_t SHIM_MBUF_RX_LRO = RTE_MBUF_F_RX_LRO;
static const uint64_t SHIM_MBUF_TX_VLAN = RTE_MBUF_F_TX_VLAN;
static const uint64_t SHIM_MBUF_TX_QINQ = RTE_MBUF_F_TX_QINQ;
static const uint64_t SHIM_MBUF_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t SHIM_MBUF_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t SHIM_MBUF_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t SHIM_MBUF_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t SHIM_MBUF_TX_UDP_CKSUM = RTE_MBUF_F_TX_UDP_CKSUM;
static const uint64_t SHIM_MBUF_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t SHIM_MBUF_TX_UDP_SEG = RTE_MBUF_F_TX_UDP_SEG;
static const uint32_t SHIM_MBUF_L2_LEN_BITS = RTE_MBUF_L2_LEN_BITS;
static const uint32_t SHIM_MBUF_L3_LEN_BITS = RTE_MBUF_L3_LEN_BITS;
static const uint32_t SHIM_MBUF_L4_LEN_BITS = RTE_MBUF_L4_LEN_BITS;
static const uint32_t SHIM_MBUF_TSO_SEGSZ_BITS = RTE_MBUF_TSO_SEGSZ_BITS;

static const uint64_t SHIM_RX_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t SHIM_RX_QINQ_STRIP = RTE_ETH_RX_OFFLOAD_QINQ_STRIP;
static const uint64_t SHIM_RX_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t SHIM_RX_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t SHIM_RX_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t SHIM_RX_TCP_LRO = RTE_ETH_RX_OFFLOAD_TCP_LRO;
static const uint64_t SHIM_RX_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t SHIM_RX_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t SHIM_TX_VLAN_INSERT = RTE_ETH_TX_OFFLOAD_VLAN_INSERT;
static const uint64_t SHIM_TX_QINQ_INSERT = RTE_ETH_TX_OFFLOAD_QINQ_INSERT;
static const uint64_t SHIM_TX_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t SHIM_TX_UDP_CKSUM = RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t SHIM_TX_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t SHIM_TX_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t SHIM_TX_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t SHIM_TX_MBUF_FAST_FREE = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;

static const uint64_t SHIM_RSS_IPV4 = RTE_ETH_RSS_IPV4;
static const uint64_t SHIM_RSS_FRAG_IPV4 = RTE_ETH_RSS_FRAG_IPV4;
static const uint64_t SHIM_RSS_NONFRAG_IPV4_OTHER = RTE_ETH_RSS_NONFRAG_IPV4_OTHER;
static const uint64_t SHIM_RSS_IPV6 = RTE_ETH_RSS_IPV6;
static const uint64_t SHIM_RSS_TCP = RTE_ETH_RSS_TCP;
static const uint64_t SHIM_RSS_UDP = RTE_ETH_RSS_UDP;
static const uint64_t SHIM_RSS_PPPOE = RTE_ETH_RSS_PPPOE;
static const uint64_t SHIM_RSS_S_VLAN = RTE_ETH_RSS_S_VLAN;
static const uint64_t SHIM_RSS_C_VLAN = RTE_ETH_RSS_C_VLAN;
static const uint64_t SHIM_RSS_L2_SRC_ONLY = RTE_ETH_RSS_L2_SRC_ONLY;
static const uint64_t SHIM_RSS_L3_SRC_ONLY = RTE_ETH_RSS_L3_SRC_ONLY;
static const uint64_t SHIM_RSS_L3_DST_ONLY = RTE_ETH_RSS_L3_DST_ONLY;

/* EAL and threads */
int shim_rte_errno(void);
unsigned int shim_lcore_id(void);
unsigned int shim_numa_node(void);
/* Sends EAL and driver logs to stderr instead of stdout and syslog; call it before rte_eal_init. */
int shim_log_to_stderr(void);
uint64_t shim_tsc(void);
uint64_t shim_tsc_hz(void);

/* mbufs */
struct rte_mbuf *shim_mbuf_alloc(struct rte_mempool *pool);
int shim_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int n);
void shim_mbuf_free(struct rte_mbuf *mbuf);
uint16_t shim_mempool_data_room(struct rte_mempool *pool);

/* packet bursts */
uint16_t shim_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
uint16_t shim_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
uint16_t shim_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);

/* rings of mbufs */
unsigned int shim_ring_sp_enqueue_burst(struct rte_ring *ring, struct rte_mbuf **mbufs, unsigned int n);
unsigned int shim_ring_mp_enqueue_burst(struct rte_ring *ring, struct rte_mbuf **mbufs, unsigned int n);
unsigned int shim_ring_sc_dequeue_burst(struct rte_ring *ring, struct rte_mbuf **mbufs, unsigned int n);
unsigned int shim_ring_count(const struct rte_ring *ring);
unsigned int shim_ring_free_count(const struct rte_ring *ring);

/* ports */
struct shim_port_info {
	const char *driver;
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t rss_types;
	uint32_t if_index;
	uint32_t min_rx_buffer;
	int32_t numa_node;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t reta_size;
	/* 0: the driver does not say */
	uint16_t max_tx_segments;
};
struct shim_port_conf {
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t rss_types;
	uint16_t rx_queues;
	uint16_t tx_queues;
	/* 0 leaves the driver's default */
	uint16_t mtu;
	/* what is sent comes back as received, where the driver knows that mode */
	bool loopback;
};
struct shim_port_stats {
	uint64_t rx_packets;
	uint64_t tx_packets;
	uint64_t rx_bytes;
	uint64_t tx_bytes;
	uint64_t rx_missed;
	uint64_t rx_errors;
	uint64_t tx_errors;
	uint64_t rx_no_mbuf;
};
struct shim_port_link {
	/* Mbit/s; UINT32_MAX: unknown */
	uint32_t speed;
	bool up;
	bool full_duplex;
};
/* The first port of the device that `devargs` names. */
int shim_port_find(const char *devargs, uint16_t *port);
/* Takes the port for one owner; -EPERM when another owner has it. */
int shim_port_claim(uint16_t port, const char *owner);
int shim_port_info(uint16_t port, struct shim_port_info *info);
int shim_port_configure(uint16_t port, const struct shim_port_conf *conf);
/* Sets up one queue, with the offloads given at shim_port_configure. */
int shim_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, struct rte_mempool *pool);
int shim_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors);
int shim_port_mac(uint16_t port, uint8_t mac[6]);
int shim_port_link(uint16_t port, struct shim_port_link *link);
int shim_port_stats(uint16_t port, struct shim_port_stats *stats);
/* Closes the port and unplugs its device when no other port uses it. */
int shim_port_remove(uint16_t port);

/* Sends PPPoE session frames with `tags` VLAN tags (0..2) and `session_id & mask == session` to a queue. */
struct shim_pppoe_rule {
	uint16_t session;
	uint16_t mask;
	uint16_t queue;
	uint8_t tags;
	/* Match the session id as two raw bytes, for ports that do not know PPPoE. */
	bool raw;
};
/* Validates the rule, then makes it. On failure the driver's reason, if it gives one, is written to `why`. */
int shim_flow_add_pppoe(uint16_t port, const struct shim_pppoe_rule *rule, char *why, size_t size);
/* Removes all rules of the port. */
int shim_flow_flush(uint16_t port);

/* FIBs: of IPv4 routes, DIR24_8, and of IPv6 routes, TRIE */
struct shim_fib_conf {
	uint64_t default_next_hop;
	uint32_t max_routes;
	uint32_t num_tbl8;
	/* size of a next hop as a power of two of bytes: 0..3, for IPv6 1..3 */
	uint32_t next_hop_log2;
	int32_t socket;
};
struct rte_fib *shim_fib_create(const char *name, const struct shim_fib_conf *conf);
/* Fails with EPROTO if DPDK's table does not begin as shim_fib6_add expects. */
struct rte_fib6 *shim_fib6_create(const char *name, const struct shim_fib_conf *conf);
/*
 * rte_fib_add without its fault before 24.11.5: the first prefix longer than /24 in a /24, when it has the next hop of the
 * prefix around it, is not counted as a user of a tbl8 but uncounted on deletion; the count then wraps and every later such
 * prefix gets -ENOSPC. Here that prefix is added with next hop `transient`, which must differ, and changed at once.
 */
int shim_fib_add(struct rte_fib *fib, uint32_t ip, uint8_t depth, uint64_t next_hop, uint64_t transient);
/*
 * rte_fib6_add without its reservation of tbl8s, an estimate that grows with every route that comes and goes and refuses
 * routes in the end. The caller counts them instead and never asks for more than there are.
 */
int shim_fib6_add(struct rte_fib6 *fib, const uint8_t ip[16], uint8_t depth, uint64_t next_hop);
bool shim_fib6_has(struct rte_fib6 *fib, const uint8_t ip[16], uint8_t depth);
int shim_fib6_delete(struct rte_fib6 *fib, const uint8_t ip[16], uint8_t depth);
void shim_fib6_lookup_bulk(struct rte_fib6 *fib, const uint8_t *addresses, uint64_t *next_hops, int n);

#endif
