# Interactive shells of everybody. Starts no process; see /etc/profile.
[ -z "${PS1-}" ] && return
shopt -s checkwinsize
PS1='\u@\h:\w\$ '
