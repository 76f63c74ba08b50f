/* One subscriber on lwIP: frames in and out as bytes, time as a number. */
#include <string.h>

#include "lwip/init.h"
#include "lwip/netif.h"
#include "lwip/pbuf.h"
#include "lwip/timeouts.h"
#include "netif/ethernet.h"
#include "netif/ppp/pppapi.h"
#include "netif/ppp/pppoe.h"

typedef void (*lwip_peer_send)(void *context, const u8_t *bytes, size_t length);

static u32_t now_ms;
static unsigned int random_state = 1;
static struct netif ethernet;
static struct netif session;
static ppp_pcb *ppp;
static lwip_peer_send send_frame;
static void *send_context;
static int last_status = -1;

u32_t sys_now(void) { return now_ms; }

u32_t sys_jiffies(void) { return now_ms; }

unsigned int lwip_peer_random(void)
{
  random_state = random_state * 1103515245u + 12345u;
  return random_state ^ (random_state >> 16);
}

static err_t output(struct netif *netif, struct pbuf *chain)
{
  u8_t bytes[2048];
  u16_t length = pbuf_copy_partial(chain, bytes, sizeof bytes, 0);
  (void)netif;
  send_frame(send_context, bytes, length);
  return ERR_OK;
}

static err_t ethernet_init(struct netif *netif)
{
  netif->name[0] = 'e';
  netif->name[1] = 'n';
  netif->mtu = 1500;
  netif->hwaddr_len = 6;
  netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHERNET | NETIF_FLAG_LINK_UP;
  netif->linkoutput = output;
  return ERR_OK;
}

static void on_status(ppp_pcb *pcb, int code, void *context)
{
  (void)pcb;
  (void)context;
  last_status = code;
}

/* Once a process. */
int lwip_peer_start(const u8_t *mac, int by_chap, const char *user, const char *password, u32_t now,
                    lwip_peer_send send, void *context)
{
  send_frame = send;
  send_context = context;
  now_ms = now;
  lwip_init();
  if (netif_add_noaddr(&ethernet, NULL, ethernet_init, ethernet_input) == NULL) {
    return -1;
  }
  memcpy(ethernet.hwaddr, mac, 6);
  netif_set_up(&ethernet);
  ppp = pppoe_create(&session, &ethernet, NULL, NULL, on_status, NULL);
  if (ppp == NULL) {
    return -1;
  }
  ppp_set_auth(ppp, by_chap ? PPPAUTHTYPE_CHAP : PPPAUTHTYPE_PAP, user, password);
  ppp_set_usepeerdns(ppp, 1);
  ppp_set_default(ppp);
  return 0;
}

int lwip_peer_connect(void)
{
  last_status = -1;
  return ppp_connect(ppp, 0);
}

int lwip_peer_close(void) { return ppp_close(ppp, 0); }

void lwip_peer_receive(const u8_t *bytes, size_t length)
{
  struct pbuf *buffer = pbuf_alloc(PBUF_RAW, (u16_t)length, PBUF_RAM);
  if (buffer == NULL) {
    return;
  }
  pbuf_take(buffer, bytes, (u16_t)length);
  if (ethernet.input(buffer, &ethernet) != ERR_OK) {
    pbuf_free(buffer);
  }
}

/* Lets time pass; returns the time to the next timer in milliseconds. */
u32_t lwip_peer_tick(u32_t now)
{
  now_ms = now;
  sys_check_timeouts();
  return sys_timeouts_sleeptime();
}

/* PPPERR_ code of the latest change; -1 before one. */
int lwip_peer_status(void) { return last_status; }

u32_t lwip_peer_address(void) { return lwip_ntohl(ip4_addr_get_u32(netif_ip4_addr(&session))); }

u32_t lwip_peer_gateway(void) { return lwip_ntohl(ip4_addr_get_u32(netif_ip4_gw(&session))); }

/* Whether its link-local address is there: IPv6CP is open. */
int lwip_peer_has_ipv6(void)
{
  return ip6_addr_islinklocal(netif_ip6_addr(&session, 0)) && ip6_addr_isvalid(netif_ip6_addr_state(&session, 0));
}
