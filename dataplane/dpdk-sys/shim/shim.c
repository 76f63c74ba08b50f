#include "shim.h"

#include <stdio.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_log.h>
#include <rte_rib.h>
#include <rte_rib6.h>

/* ---- layout ---------------------------------------------------------------------------------------------------- */

#define SAME(field, dpdk) \
	_Static_assert(offsetof(struct shim_mbuf, field) == offsetof(struct rte_mbuf, dpdk), "offset of " #dpdk); \
	_Static_assert(sizeof(((struct shim_mbuf *)0)->field) == sizeof(((struct rte_mbuf *)0)->dpdk), "size of " #dpdk)

_Static_assert(sizeof(struct shim_mbuf) == sizeof(struct rte_mbuf), "size of rte_mbuf");
SAME(buf_addr, buf_addr);
SAME(data_off, data_off);
SAME(refcnt, refcnt);
SAME(nb_segs, nb_segs);
SAME(port, port);
SAME(ol_flags, ol_flags);
SAME(packet_type, packet_type);
SAME(pkt_len, pkt_len);
SAME(data_len, data_len);
SAME(vlan_tci, vlan_tci);
SAME(hash_rss, hash.rss);
SAME(hash_fdir_hi, hash.fdir.hi);
SAME(vlan_tci_outer, vlan_tci_outer);
SAME(buf_len, buf_len);
SAME(pool, pool);
SAME(next, next);
SAME(tx_offload, tx_offload);
SAME(shinfo, shinfo);
SAME(priv_size, priv_size);
SAME(timesync, timesync);
SAME(dynfield1, dynfield1);

#define FIELD(type, name, field) { name, offsetof(struct type, field), sizeof(((struct type *)0)->field) }

size_t shim_rte_mbuf_size(void)
{
	return sizeof(struct rte_mbuf);
}

const struct shim_field *shim_rte_mbuf_fields(size_t *count)
{
	static const struct shim_field fields[] = {
		FIELD(rte_mbuf, "buf_addr", buf_addr),
		FIELD(rte_mbuf, "data_off", data_off),
		FIELD(rte_mbuf, "refcnt", refcnt),
		FIELD(rte_mbuf, "nb_segs", nb_segs),
		FIELD(rte_mbuf, "port", port),
		FIELD(rte_mbuf, "ol_flags", ol_flags),
		FIELD(rte_mbuf, "packet_type", packet_type),
		FIELD(rte_mbuf, "pkt_len", pkt_len),
		FIELD(rte_mbuf, "data_len", data_len),
		FIELD(rte_mbuf, "vlan_tci", vlan_tci),
		FIELD(rte_mbuf, "hash_rss", hash.rss),
		FIELD(rte_mbuf, "hash_fdir_hi", hash.fdir.hi),
		FIELD(rte_mbuf, "vlan_tci_outer", vlan_tci_outer),
		FIELD(rte_mbuf, "buf_len", buf_len),
		FIELD(rte_mbuf, "pool", pool),
		FIELD(rte_mbuf, "next", next),
		FIELD(rte_mbuf, "tx_offload", tx_offload),
		FIELD(rte_mbuf, "shinfo", shinfo),
		FIELD(rte_mbuf, "priv_size", priv_size),
		FIELD(rte_mbuf, "timesync", timesync),
		FIELD(rte_mbuf, "dynfield1", dynfield1),
	};
	*count = RTE_DIM(fields);
	return fields;
}

size_t shim_rte_eth_xstat_size(void)
{
	return sizeof(struct rte_eth_xstat);
}

const struct shim_field *shim_rte_eth_xstat_fields(size_t *count)
{
	static const struct shim_field fields[] = {
		FIELD(rte_eth_xstat, "id", id),
		FIELD(rte_eth_xstat, "value", value),
	};
	*count = RTE_DIM(fields);
	return fields;
}

size_t shim_rte_eth_xstat_name_size(void)
{
	return sizeof(struct rte_eth_xstat_name);
}

/* ---- EAL and threads ------------------------------------------------------------------------------------------- */

int shim_rte_errno(void)
{
	return rte_errno;
}

unsigned int shim_lcore_id(void)
{
	return rte_lcore_id();
}

unsigned int shim_numa_node(void)
{
	return rte_socket_id();
}

int shim_log_to_stderr(void)
{
	return rte_openlog_stream(stderr);
}

uint64_t shim_tsc(void)
{
	return rte_rdtsc();
}

uint64_t shim_tsc_hz(void)
{
	return rte_get_tsc_hz();
}

/* ---- mbufs ----------------------------------------------------------------------------------------------------- */

struct rte_mbuf *shim_mbuf_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

int shim_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int n)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, n);
}

void shim_mbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

uint16_t shim_mempool_data_room(struct rte_mempool *pool)
{
	return rte_pktmbuf_data_room_size(pool);
}

/* ---- packet bursts --------------------------------------------------------------------------------------------- */

uint16_t shim_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_rx_burst(port, queue, mbufs, n);
}

uint16_t shim_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_tx_burst(port, queue, mbufs, n);
}

uint16_t shim_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_tx_prepare(port, queue, mbufs, n);
}

/* ---- rings ----------------------------------------------------------------------------------------------------- */

unsigned int shim_ring_sp_enqueue_burst(struct rte_ring *ring, struct rte_mbuf **mbufs, unsigned int n)
{
	return rte_ring_sp_enqueue_burst(ring, (void **)mbufs, n, NULL);
}

unsigned int shim_ring_mp_enqueue_burst(struct rte_ring *ring, struct rte_mbuf **mbufs, unsigned int n)
{
	return rte_ring_mp_enqueue_burst(ring, (void **)mbufs, n, NULL);
}

unsigned int shim_ring_sc_dequeue_burst(struct rte_ring *ring, struct rte_mbuf **mbufs, unsigned int n)
{
	return rte_ring_sc_dequeue_burst(ring, (void **)mbufs, n, NULL);
}

unsigned int shim_ring_count(const struct rte_ring *ring)
{
	return rte_ring_count(ring);
}

unsigned int shim_ring_free_count(const struct rte_ring *ring)
{
	return rte_ring_free_count(ring);
}

/* ---- ports ----------------------------------------------------------------------------------------------------- */

int shim_port_find(const char *devargs, uint16_t *port)
{
	struct rte_dev_iterator iterator;
	uint16_t id;

	/* The common case, and the only one for names that are not devargs syntax: port name = device name. */
	if (rte_eth_dev_get_port_by_name(devargs, port) == 0)
		return 0;
	RTE_ETH_FOREACH_MATCHING_DEV(id, devargs, &iterator) {
		rte_eth_iterator_cleanup(&iterator);
		*port = id;
		return 0;
	}
	return -ENODEV;
}

int shim_port_claim(uint16_t port, const char *name)
{
	struct rte_eth_dev_owner owner;
	int rc;

	memset(&owner, 0, sizeof(owner));
	rc = rte_eth_dev_owner_new(&owner.id);
	if (rc != 0)
		return rc;
	snprintf(owner.name, sizeof(owner.name), "%s", name);
	return rte_eth_dev_owner_set(port, &owner);
}

/* The largest MTU that rte_eth_dev_configure accepts: it also bounds the frame by max_rx_pktlen. */
static uint16_t usable_max_mtu(const struct rte_eth_dev_info *info)
{
	uint32_t overhead = RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN;
	uint32_t by_frame;

	if (info->max_mtu != UINT16_MAX && info->max_rx_pktlen > info->max_mtu)
		overhead = info->max_rx_pktlen - info->max_mtu;
	if (info->max_rx_pktlen <= overhead)
		return info->max_mtu;
	by_frame = info->max_rx_pktlen - overhead;
	return by_frame < info->max_mtu ? (uint16_t)by_frame : info->max_mtu;
}

int shim_port_info(uint16_t port, struct shim_port_info *out)
{
	struct rte_eth_dev_info info;
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return rc;
	memset(out, 0, sizeof(*out));
	out->driver = info.driver_name;
	out->rx_offloads = info.rx_offload_capa;
	out->tx_offloads = info.tx_offload_capa;
	out->rss_types = info.flow_type_rss_offloads;
	out->if_index = info.if_index;
	out->min_rx_buffer = info.min_rx_bufsize;
	out->numa_node = rte_eth_dev_socket_id(port);
	out->max_rx_queues = info.max_rx_queues;
	out->max_tx_queues = info.max_tx_queues;
	out->min_mtu = info.min_mtu;
	out->max_mtu = usable_max_mtu(&info);
	out->reta_size = info.reta_size;
	out->max_tx_segments = info.tx_desc_lim.nb_seg_max;
	return 0;
}

int shim_port_configure(uint16_t port, const struct shim_port_conf *conf)
{
	struct rte_eth_conf eth;

	memset(&eth, 0, sizeof(eth));
	eth.rxmode.mq_mode = conf->rss_types != 0 ? RTE_ETH_MQ_RX_RSS : RTE_ETH_MQ_RX_NONE;
	eth.rxmode.mtu = conf->mtu;
	eth.rxmode.offloads = conf->rx_offloads;
	eth.txmode.mq_mode = RTE_ETH_MQ_TX_NONE;
	eth.txmode.offloads = conf->tx_offloads;
	eth.rx_adv_conf.rss_conf.rss_hf = conf->rss_types;
	/* Each driver defines its values; where there is the mode, 1 is loop-back of transmit to receive. */
	eth.lpbk_mode = conf->loopback;
	return rte_eth_dev_configure(port, conf->rx_queues, conf->tx_queues, &eth);
}

int shim_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, struct rte_mempool *pool)
{
	/* No queue configuration: the driver's defaults, with the offloads of the port. */
	return rte_eth_rx_queue_setup(port, queue, descriptors, rte_eth_dev_socket_id(port), NULL, pool);
}

int shim_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors)
{
	return rte_eth_tx_queue_setup(port, queue, descriptors, rte_eth_dev_socket_id(port), NULL);
}

int shim_port_mac(uint16_t port, uint8_t mac[6])
{
	struct rte_ether_addr addr;
	int rc = rte_eth_macaddr_get(port, &addr);

	if (rc == 0)
		memcpy(mac, addr.addr_bytes, 6);
	return rc;
}

int shim_port_link(uint16_t port, struct shim_port_link *out)
{
	struct rte_eth_link link;
	int rc;

	memset(&link, 0, sizeof(link));
	rc = rte_eth_link_get_nowait(port, &link);
	if (rc != 0)
		return rc;
	out->speed = link.link_speed;
	out->up = link.link_status == RTE_ETH_LINK_UP;
	out->full_duplex = link.link_duplex == RTE_ETH_LINK_FULL_DUPLEX;
	return 0;
}

int shim_port_stats(uint16_t port, struct shim_port_stats *out)
{
	struct rte_eth_stats stats;
	int rc;

	memset(&stats, 0, sizeof(stats));
	rc = rte_eth_stats_get(port, &stats);
	if (rc != 0)
		return rc;
	out->rx_packets = stats.ipackets;
	out->tx_packets = stats.opackets;
	out->rx_bytes = stats.ibytes;
	out->tx_bytes = stats.obytes;
	out->rx_missed = stats.imissed;
	out->rx_errors = stats.ierrors;
	out->tx_errors = stats.oerrors;
	out->rx_no_mbuf = stats.rx_nombuf;
	return 0;
}

int shim_port_remove(uint16_t port)
{
	struct rte_eth_dev_info info;
	uint16_t sibling;
	int rc = rte_eth_dev_info_get(port, &info);

	if (rc != 0)
		return rc;
	rc = rte_eth_dev_close(port);
	if (rc != 0)
		return rc;
	/* Ports with an owner are skipped by the public iterators: ask every id. */
	for (sibling = 0; sibling < RTE_MAX_ETHPORTS; sibling++) {
		struct rte_eth_dev_info other;

		if (rte_eth_dev_is_valid_port(sibling) && rte_eth_dev_info_get(sibling, &other) == 0 &&
				other.device == info.device)
			return 0;
	}
	return rte_dev_remove(info.device);
}

/* ---- flow rules ------------------------------------------------------------------------------------------------ */

int shim_flow_add_pppoe(uint16_t port, const struct shim_pppoe_rule *rule, char *why, size_t size)
{
	const struct rte_flow_attr attr = { .ingress = 1 };
	const struct rte_flow_item_eth eth = { .type = RTE_BE16(RTE_ETHER_TYPE_PPPOE_SESSION) };
	const struct rte_flow_item_eth eth_mask = { .type = RTE_BE16(0xffff) };
	const struct rte_flow_item_pppoe pppoe = { .session_id = rte_cpu_to_be_16(rule->session) };
	const struct rte_flow_item_pppoe pppoe_mask = { .session_id = rte_cpu_to_be_16(rule->mask) };
	/* In the PPPoE header the session id comes after version, type and code. */
	const uint8_t id[2] = { rule->session >> 8, rule->session & 0xff };
	const uint8_t id_mask[2] = { rule->mask >> 8, rule->mask & 0xff };
	const struct rte_flow_item_raw raw = { .relative = 1, .offset = 2, .length = 2, .pattern = id };
	const struct rte_flow_item_raw raw_mask = {
		.relative = 1, .search = 1, .offset = -1, .limit = 0xffff, .length = 0xffff, .pattern = id_mask,
	};
	const struct rte_flow_action_queue queue = { .index = rule->queue };
	const struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &queue },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_item pattern[5];
	struct rte_flow_error error;
	int items = 0, tag, rc;

	memset(pattern, 0, sizeof(pattern));
	memset(&error, 0, sizeof(error));
	pattern[items].type = RTE_FLOW_ITEM_TYPE_ETH;
	if (rule->raw && rule->tags == 0) {
		pattern[items].spec = &eth;
		pattern[items].mask = &eth_mask;
	}
	items++;
	for (tag = 0; tag < rule->tags && tag < 2; tag++)
		pattern[items++].type = RTE_FLOW_ITEM_TYPE_VLAN;
	pattern[items].type = rule->raw ? RTE_FLOW_ITEM_TYPE_RAW : RTE_FLOW_ITEM_TYPE_PPPOES;
	pattern[items].spec = rule->raw ? (const void *)&raw : (const void *)&pppoe;
	pattern[items].mask = rule->raw ? (const void *)&raw_mask : (const void *)&pppoe_mask;
	pattern[++items].type = RTE_FLOW_ITEM_TYPE_END;

	rc = rte_flow_validate(port, &attr, pattern, actions, &error);
	if (rc == 0 && rte_flow_create(port, &attr, pattern, actions, &error) == NULL)
		rc = rte_errno != 0 ? -rte_errno : -EINVAL;
	if (rc != 0)
		snprintf(why, size, "%s", error.message != NULL ? error.message : "");
	return rc;
}

int shim_flow_flush(uint16_t port)
{
	struct rte_flow_error error;

	return rte_flow_flush(port, &error);
}

/* ---- FIB ------------------------------------------------------------------------------------------------------- */

struct rte_fib *shim_fib_create(const char *name, const struct shim_fib_conf *conf)
{
	struct rte_fib_conf fib;

	memset(&fib, 0, sizeof(fib));
	fib.type = RTE_FIB_DIR24_8;
	fib.default_nh = conf->default_next_hop;
	fib.max_routes = (int)conf->max_routes;
	fib.dir24_8.nh_sz = (enum rte_fib_dir24_8_nh_sz)conf->next_hop_log2;
	fib.dir24_8.num_tbl8 = conf->num_tbl8;
	return rte_fib_create(name, conf->socket, &fib);
}

/* How `struct rte_trie_tbl` begins, in every release from 19.11 on. */
struct trie_head {
	uint32_t number_tbl8s;
	uint32_t rsvd_tbl8s;
};

struct rte_fib6 *shim_fib6_create(const char *name, const struct shim_fib_conf *conf)
{
	struct rte_fib6_conf config;
	struct rte_fib6 *fib;
	const struct trie_head *head;

	memset(&config, 0, sizeof(config));
	config.type = RTE_FIB6_TRIE;
	config.default_nh = conf->default_next_hop;
	config.max_routes = (int)conf->max_routes;
	config.trie.nh_sz = (enum rte_fib_trie_nh_sz)conf->next_hop_log2;
	config.trie.num_tbl8 = conf->num_tbl8;
	fib = rte_fib6_create(name, conf->socket, &config);
	if (fib == NULL)
		return NULL;
	head = rte_fib6_get_dp(fib);
	if (head->number_tbl8s != conf->num_tbl8 || head->rsvd_tbl8s != 0) {
		rte_fib6_free(fib);
		rte_errno = EPROTO;
		return NULL;
	}
	return fib;
}

/* Whether rte_fib_add would return early and leave a tbl8 uncounted. */
static bool adds_uncounted_tbl8(struct rte_rib *rib, uint32_t ip, uint8_t depth, uint64_t next_hop)
{
	struct rte_rib_node *around = NULL;
	uint64_t its_next_hop;

	if (depth <= 24 || depth > RTE_FIB_MAXDEPTH)
		return false;
	/* Another long prefix in this /24: the tbl8 is counted. That includes the same prefix, already there. */
	if (rte_rib_get_nxt(rib, ip, 24, NULL, RTE_RIB_GET_NXT_COVER) != NULL)
		return false;
	for (depth = 25; around == NULL && depth-- > 0;)
		around = rte_rib_lookup_exact(rib, ip & rte_rib_depth_to_mask(depth), depth);
	return around != NULL && rte_rib_get_nh(around, &its_next_hop) == 0 && its_next_hop == next_hop;
}

int shim_fib_add(struct rte_fib *fib, uint32_t ip, uint8_t depth, uint64_t next_hop, uint64_t transient)
{
	if (adds_uncounted_tbl8(rte_fib_get_rib(fib), ip, depth, next_hop)) {
		int rc = rte_fib_add(fib, ip, depth, transient);

		if (rc != 0)
			return rc;
	}
	return rte_fib_add(fib, ip, depth, next_hop);
}

int shim_fib6_add(struct rte_fib6 *fib, const uint8_t ip[16], uint8_t depth, uint64_t next_hop)
{
	struct trie_head *head = rte_fib6_get_dp(fib);

	head->rsvd_tbl8s = 0;
	return rte_fib6_add(fib, ip, depth, next_hop);
}

bool shim_fib6_has(struct rte_fib6 *fib, const uint8_t ip[16], uint8_t depth)
{
	return rte_rib6_lookup_exact(rte_fib6_get_rib(fib), ip, depth) != NULL;
}

int shim_fib6_delete(struct rte_fib6 *fib, const uint8_t ip[16], uint8_t depth)
{
	return rte_fib6_delete(fib, ip, depth);
}

void shim_fib6_lookup_bulk(struct rte_fib6 *fib, const uint8_t *addresses, uint64_t *next_hops, int n)
{
	/* The argument lacks a const. */
	rte_fib6_lookup_bulk(fib, (uint8_t (*)[16])(uintptr_t)addresses, next_hops, n);
}
