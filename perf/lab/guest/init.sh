#!/bin/bash
# First process of the lab's Linux client: User-Mode Linux with the machine's own / as its read-only root.
#
# The kernel hands unknown KEY=VALUE boot arguments to us as environment:
#   LAB_MODULES   directory of the guest kernel's modules (.../modules/6.1.x)
#
# The first serial line (ttyS0) is the command channel; the driver is `UmlGuest` in guest.rs. Protocol:
#   guest -> driver   :ready UPTIME 0      commands are accepted
#   driver -> guest   ID COMMAND           one line, evaluated by this shell
#   guest -> driver   :ID STATUS LENGTH    followed by exactly LENGTH bytes: what the command printed
# Kernel messages go to the console, which is another line, so they never mix with the channel.

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LC_ALL=C

mount -t proc proc /proc
mount -t sysfs sysfs /sys
# ppp_async looks out of place for PPPoE, but pppd probes for the asynchronous line discipline at its start.
for module in lib/crc-ccitt drivers/net/slip/slhc drivers/net/ppp/ppp_generic drivers/net/ppp/ppp_async \
              drivers/net/ppp/pppox drivers/net/ppp/pppoe net/802/mrp net/llc/llc net/802/stp net/802/garp \
              net/8021q/8021q drivers/net/macvlan drivers/net/veth net/ipv6/ipv6; do
    busybox insmod "$LAB_MODULES/kernel/$module.ko" || echo "lab guest: cannot load $module" >&2
done
# What the lab has unpacked may live below one of these directories: it stays where it is.
lab=${LAB_MODULES%/usr/lib/uml/modules/*}
mount -t tmpfs tmpfs /mnt && mkdir /mnt/lab && mount --bind "$lab" /mnt/lab
for dir in /run /tmp /etc/ppp; do mount -t tmpfs tmpfs "$dir"; done
mkdir -p "$lab" && mount --bind /mnt/lab "$lab"
mkdir -p /run/lock /run/link
: >/etc/ppp/options

# Every link has a FIFO on which its life is told: "up ..." by ip-up, "exit STATUS" by the shell around pppd.
# ip-up gets: interface, tty, speed, local address, peer address, ipparam (our link name); DNS servers as DNS1, DNS2.
cat >/etc/ppp/ip-up <<'SCRIPT'
#!/bin/sh
echo "up $1 $4 $5 ${DNS1:--} ${DNS2:--}" >"/run/link/$6"
SCRIPT
chmod +x /etc/ppp/ip-up

declare -A events # link name -> descriptor of its FIFO, open in both directions so that nobody ever blocks in open()

# dial LINK ARGUMENT... : start pppd for a new link. What becomes of it is read with `await`.
dial() {
    local link=$1 fd=${events[$1]}
    shift
    [ -z "$fd" ] || exec {fd}>&-
    rm -f "/run/link/$link"
    mkfifo "/run/link/$link"
    exec {fd}<>"/run/link/$link"
    events[$link]=$fd
    (
        pppd plugin pppoe.so "$@" ipparam "$link" nodetach noauth nopersist >"/run/link/$link.log" 2>&1 &
        echo $! >"/run/link/$link.pid"
        wait $!
        echo "exit $?" >&"$fd"
    ) &
}

# await LINK SECONDS : the link's next event, or status 1 when none comes in time.
await() {
    local event
    read -r -t "$2" -u "${events[$1]}" event && echo "$event"
}

# hang_up LINK : ask pppd to end the link; its "exit" event follows.
hang_up() {
    kill -TERM "$(cat "/run/link/$1.pid")"
}

# vanish LINK : end pppd so that it cannot tell anybody; its "exit" event follows.
vanish() {
    kill -KILL "$(cat "/run/link/$1.pid")"
}

for device in lo $(cd /sys/class/net; echo vec*); do ip link set "$device" up; done
stty raw -echo </dev/ttyS0
exec 3<>/dev/ttyS0
read -r uptime _ </proc/uptime
echo ":ready $uptime 0" >&3
while read -r id command <&3; do
    eval "$command" >/run/output 2>&1 </dev/null 3>&-
    status=$?
    printf ':%s %d %d\n' "$id" "$status" "$(stat -c %s /run/output)" >&3
    cat /run/output >&3
done
busybox poweroff -f
